/*
 * Everything a child needs for execve, built before it exists: argv, environment, directory, in one
 * block of memory. The child itself must not allocate.
 */
#pragma once

#include "account.h"
#include "agent.h"

#define EXEC_DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

struct exec_plan {
    char **argv;
    char **envp;
    const char *path; /* value of PATH in envp */
    const char *cwd;
    bool cwd_is_home; /* fall back to "/" when it is missing */
};

/* NULL: no memory. The block is freed with free(). */
struct exec_plan *exec_plan_new(const struct sp_msg_list *defaults,
                                const struct sp_msg_start *start, const struct account *account);
