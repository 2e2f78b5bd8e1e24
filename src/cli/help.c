/* `space help` and `space completion`, both from the table of verbs. */
#include <stdio.h>
#include <string.h>

#include "cli/client_options.h"
#include "cli/output.h"
#include "cli/verbs.h"

const struct sp_option sp_help_options[] = {SP_OPTION_HELP, {0}};
const size_t sp_help_options_bytes = sizeof(struct sp_help_option);
const struct sp_option sp_completion_options[] = {SP_OPTION_HELP, {0}};
const size_t sp_completion_options_bytes = sizeof(struct sp_help_option);

void sp_help_print_all(void)
{
    puts("Usage: space VERB [options] …\n\nVerbs:");
    for (const struct sp_command *c = sp_commands; c->verb; c++) {
        if (c->help)
            printf("  %-16s %s\n", c->verb, c->help);
    }
    puts(
        "\n`space help VERB` shows the options of one.\n"
        "Server and key come from SPACE_URL and SPACE_KEY, else from client.conf in the state "
        "directory.\n"
        "Exit codes: 125 our own error, 124 time-out, 126/127 command cannot run or is not there,\n"
        "128+n ended by signal n; else the command's own.");
}

static void print_option(const struct sp_option *option)
{
    char letter[8] = "    ";
    if (option->letter)
        g_snprintf(letter, sizeof letter, "-%c, ", option->letter);
    g_autofree char *name =
        g_strdup_printf("%s--%s%s%s", letter, option->name, option->value_name ? " " : "",
                        option->value_name ? option->value_name : "");
    printf("  %-28s %s\n", name, option->help);
}

void sp_help_print(const struct sp_command *command)
{
    printf("Usage: space %s [options] %s\n\n%s\n\nOptions:\n", command->verb, command->operands,
           command->help ? command->help : "One of SPACE's own processes; not for use by hand.");
    for (const struct sp_option *o = command->options; o->name; o++)
        print_option(o);
}

int sp_help_verb(const struct sp_invocation *invocation)
{
    int words = 0;
    if (invocation->n_operands == 0) {
        sp_help_print_all();
        return sp_output_finish(0);
    }
    const struct sp_command *command =
        sp_command_find((int)invocation->n_operands, invocation->operands, &words);
    if (!command) {
        fprintf(stderr, "space: there is no verb \"%s\"\n", invocation->operands[0]);
        return SP_EXIT_PLATFORM;
    }
    sp_help_print(command);
    return sp_output_finish(0);
}

/* One line `"verb"|"verb "*) words="--a --b";;`: the second pattern is for a verb of one word whose
 * operand stands where others have their second word (`snapshot ID`). */
static void print_case(const struct sp_command *command)
{
    printf("    \"%s\"|\"%s \"*) words=\"", command->verb, command->verb);
    for (const struct sp_option *o = command->options; o->name; o++)
        printf("--%s ", o->name);
    puts("\";;");
}

/* All second words of the verbs that begin with `first` ("build ls rm"), or with NULL all first
 * words, each once. Free with g_free(). */
static char *words_after(const char *first)
{
    g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
    for (const struct sp_command *c = sp_commands; c->verb; c++) {
        g_auto(GStrv) split = g_strsplit(c->verb, " ", 2);
        const char *word = first ? split[1] : split[0];
        bool wanted = c->help && word && (!first || strcmp(split[0], first) == 0);
        if (wanted && !g_ptr_array_find_with_equal_func(words, word, g_str_equal, NULL))
            g_ptr_array_add(words, g_strdup(word));
    }
    g_ptr_array_add(words, NULL);
    return g_strjoinv(" ", (char **)words->pdata);
}

static void print_bash(void)
{
    g_autofree char *verbs = words_after(NULL);
    printf("# eval \"$(space completion bash)\"\n"
           "_space() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} words=\n"
           "    case $COMP_CWORD:$verb in\n"
           "    1:*) words=\"%s\";;\n",
           verbs);
    g_auto(GStrv) list = g_strsplit(verbs, " ", -1);
    for (char **verb = list; *verb; verb++) {
        g_autofree char *second = words_after(*verb);
        if (*second)
            printf("    2:%s) words=\"%s\";;\n    *:%s) verb=\"%s ${COMP_WORDS[2]}\";;\n", *verb,
                   second, *verb, *verb);
    }
    puts("    esac\n    [ -n \"$words\" ] || case $verb in");
    for (const struct sp_command *c = sp_commands; c->verb; c++) {
        if (c->help)
            print_case(c);
    }
    puts("    esac\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
         "}\n"
         "complete -o default -F _space space");
}

int sp_completion_verb(const struct sp_invocation *invocation)
{
    if (strcmp(invocation->operands[0], "bash") != 0) {
        fputs("space: there is completion for bash only\n", stderr);
        return SP_EXIT_PLATFORM;
    }
    print_bash();
    return sp_output_finish(0);
}
