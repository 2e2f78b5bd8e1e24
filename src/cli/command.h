/*
 * The verbs of the command line. One table (commands.c) drives dispatch, `space help` and shell
 * completion.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>

#include "cli/options.h"

/* Exit codes of our own; every other one is the command's (docs/cli.md). */
#define SP_EXIT_PLATFORM 125
#define SP_EXIT_TIMEOUT 124
#define SP_EXIT_NOT_EXECUTABLE 126
#define SP_EXIT_NOT_FOUND 127

struct sp_invocation {
    const struct sp_command *command;
    void *options;   /* the verb's own struct, filled by its option table */
    char **operands; /* strv */
    guint n_operands;
};

struct sp_command {
    const char *verb;     /* "run", "template build"; NULL ends the table */
    const char *operands; /* "ID…", for the usage line */
    const char *help;     /* one line; NULL hides the verb */
    const struct sp_option *options;
    const size_t
        *options_bytes; /* size of the verb's own struct; it begins with struct sp_client_options,
                    or for verbs that are no clients with a bool `help` */
    int (*run)(const struct sp_invocation *invocation);
    guint min_operands, max_operands; /* G_MAXUINT: any number */
    bool stop_at_operand; /* what follows the first operand is a command of somebody else */
};

/* Ended by a row with a NULL verb. */
extern const struct sp_command sp_commands[];

/* The verb that argv[0..argc) names (one or two words); NULL when there is none. ret_words gets how
 * many words it took. */
const struct sp_command *sp_command_find(int argc, char **argv, int *ret_words);

/* Parses the options and runs the verb; returns the exit code. */
int sp_command_dispatch(int argc, char **argv);

/* Prints the list of verbs, or the page of one verb. */
void sp_help_print_all(void);
void sp_help_print(const struct sp_command *command);
