#include "cli/command.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/client_options.h"
#include "cli/output.h"

const struct sp_command *sp_command_find(int argc, char **argv, int *ret_words)
{
    for (const struct sp_command *c = sp_commands; c->verb; c++) {
        g_auto(GStrv) words = g_strsplit(c->verb, " ", 2);
        int n = (int)g_strv_length(words);
        if (argc < n || strcmp(argv[0], words[0]) != 0 ||
            (n == 2 && strcmp(argv[1], words[1]) != 0))
            continue;
        *ret_words = n;
        return c;
    }
    return NULL;
}

static bool check_operands(const struct sp_invocation *invocation, GError **error)
{
    const struct sp_command *c = invocation->command;
    if (invocation->n_operands >= c->min_operands && invocation->n_operands <= c->max_operands)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                invocation->n_operands < c->min_operands
                    ? "space %s needs %s (see `space help %s`)"
                    : "space %s takes no more than %s (see `space help %s`)",
                c->verb, *c->operands ? c->operands : "options", c->verb);
    return false;
}

static int run_verb(const struct sp_command *command, int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    g_autofree void *options = g_malloc0(*command->options_bytes);
    g_auto(GStrv) operands = NULL;
    int code;
    if (!sp_options_parse(command->options, options, argc, argv, command->stop_at_operand,
                          &operands, &error)) {
        code = sp_output_error(error);
    } else if (((struct sp_help_option *)options)->help) {
        sp_help_print(command);
        code = sp_output_finish(0);
    } else {
        struct sp_invocation invocation = {.command = command,
                                           .options = options,
                                           .operands = operands,
                                           .n_operands = g_strv_length(operands)};
        code = check_operands(&invocation, &error) ? command->run(&invocation)
                                                   : sp_output_error(error);
    }
    sp_options_clear(command->options, options);
    return code;
}

int sp_command_dispatch(int argc, char **argv)
{
    if (argc < 1 || strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        sp_help_print_all();
        return sp_output_finish(argc < 1 ? SP_EXIT_PLATFORM : 0);
    }
    if (strcmp(argv[0], "--version") == 0 || strcmp(argv[0], "version") == 0) {
        printf("space %s\n", SPACE_VERSION);
        return sp_output_finish(0);
    }
    int words = 0;
    const struct sp_command *command = sp_command_find(argc, argv, &words);
    if (command)
        return run_verb(command, argc - words, argv + words);
    fprintf(stderr, "space: there is no verb \"%s\"; `space help` lists them\n", argv[0]);
    return SP_EXIT_PLATFORM;
}
