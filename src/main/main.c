/*
 * The one binary `space`: client verbs, and the hidden verbs that are SPACE's own processes. The
 * table of verbs is cli/commands.c.
 */
#include <locale.h>
#include <signal.h>

#include "cli/command.h"

/* A handler, unlike SIG_IGN, is not handed on to programs that we start (execve(2)). */
static void ignore(int signal)
{
    (void)signal;
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, "C.UTF-8");
    /* A reader that goes away is an error of write(2), which is handled, not the end of us. */
    struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
    sigaction(SIGPIPE, &action, NULL);
    return sp_command_dispatch(argc - 1, argv + 1);
}
