#include "cli/programs.h"

#include <glib.h>

static char *find(const char *const *places)
{
    g_autofree char *self = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *folder = g_path_get_dirname(self ? self : "/usr/bin/space");
    for (const char *const *place = places; *place; place++) {
        g_autofree char *joined = g_build_filename(folder, *place, NULL);
        if (g_file_test(joined, G_FILE_TEST_EXISTS))
            return g_canonicalize_filename(joined, "/");
    }
    return g_build_filename(folder, places[0], NULL);
}

char *sp_program_agent(void)
{
    static const char *const places[] = {"agent/space-agent", "../libexec/space/space-agent", NULL};
    return find(places);
}

char *sp_program_guest_dir(void)
{
    static const char *const places[] = {"guest", "../libexec/space/guest", "../lib/space/guest",
                                         NULL};
    return find(places);
}
