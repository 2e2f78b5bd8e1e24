/* Where the files that belong to this installation of SPACE are, found from our own program's
 * place. */
#pragma once

/* The static space-agent: in the build tree agent/space-agent beside us, installed
 * <prefix>/libexec/space/space-agent. The first place is returned when none has it. Free with
 * g_free(). */
char *sp_program_agent(void);
/* Directory with the microVM's kernel and modules: guest/ beside us, <prefix>/libexec/space/guest,
 * <prefix>/lib/space/guest. As above. */
char *sp_program_guest_dir(void);
