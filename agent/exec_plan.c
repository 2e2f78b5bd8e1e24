#include "exec_plan.h"

#include <stdlib.h>
#include <string.h>

#define OWN_VARIABLES 5u /* HOME USER LOGNAME SHELL PATH */

struct builder {
    char *at; /* free string space */
    char **envp;
    size_t count; /* of envp */
};

/* Puts one "K=V" in, in place of an earlier one with the same name. */
static void env_put(struct builder *b, char *entry)
{
    size_t name = (size_t)(strchr(entry, '=') - entry) + 1;
    for (size_t i = 0; i < b->count; i++) {
        if (strncmp(b->envp[i], entry, name) == 0) {
            b->envp[i] = entry;
            return;
        }
    }
    b->envp[b->count++] = entry;
}

static char *put_string(struct builder *b, struct sp_span s)
{
    char *to = b->at;
    if (s.len > 0)
        memcpy(to, s.bytes, s.len);
    to[s.len] = '\0';
    b->at += s.len + 1;
    return to;
}

static void env_put_pair(struct builder *b, const char *name_eq, const char *value)
{
    char *entry = put_string(b, sp_span_of(name_eq));
    b->at--; /* the value takes the place of the NUL */
    put_string(b, sp_span_of(value));
    env_put(b, entry);
}

static void env_put_list(struct builder *b, const struct sp_msg_list *list)
{
    struct sp_span item;
    for (size_t at = 0; sp_msg_list_next(list, &at, &item);)
        env_put(b, put_string(b, item));
}

static const char *env_get(const struct builder *b, const char *name_eq)
{
    size_t len = strlen(name_eq);
    for (size_t i = 0; i < b->count; i++) {
        if (strncmp(b->envp[i], name_eq, len) == 0)
            return b->envp[i] + len;
    }
    return NULL;
}

struct exec_plan *exec_plan_new(const struct sp_msg_list *defaults,
                                const struct sp_msg_start *start, const struct account *account)
{
    /* A packed item has 4 bytes of length where the string needs one NUL: raw.len is enough. */
    size_t pointers =
        start->argv.count + 1 + defaults->count + OWN_VARIABLES + start->env.count + 1;
    size_t strings = start->argv.raw.len + defaults->raw.len + start->env.raw.len + start->cwd.len +
                     1 + strlen(account->home) + 2 * strlen(account->name) +
                     strlen(account->shell) + sizeof EXEC_DEFAULT_PATH + 64;
    struct exec_plan *plan = malloc(sizeof *plan + pointers * sizeof(char *) + strings);
    if (!plan)
        return NULL;
    *plan = (struct exec_plan){.argv = (char **)(plan + 1)};
    plan->envp = plan->argv + start->argv.count + 1;
    struct builder b = {.at = (char *)(plan->argv + pointers), .envp = plan->envp};

    struct sp_span item;
    size_t count = 0;
    for (size_t at = 0; sp_msg_list_next(&start->argv, &at, &item);)
        plan->argv[count++] = put_string(&b, item);
    plan->argv[count] = NULL;

    env_put_pair(&b, "PATH=", EXEC_DEFAULT_PATH);
    env_put_list(&b, defaults);
    env_put_pair(&b, "HOME=", account->home);
    env_put_pair(&b, "USER=", account->name);
    env_put_pair(&b, "LOGNAME=", account->name);
    env_put_pair(&b, "SHELL=", account->shell);
    env_put_list(&b, &start->env);
    b.envp[b.count] = NULL;

    plan->path = env_get(&b, "PATH=");
    plan->cwd_is_home = start->cwd.len == 0;
    plan->cwd = plan->cwd_is_home ? account->home : put_string(&b, start->cwd);
    return plan;
}
