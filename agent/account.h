/*
 * Users of the sandbox, from its /etc/passwd and /etc/group. Both files are the sandbox's own and
 * therefore hostile: only regular files, only the first 64 KiB, fields of bounded length.
 */
#pragma once

#include "agent.h"

#define ACCOUNT_GROUPS_MAX 64u

struct account {
    uid_t uid;
    gid_t gid;
    unsigned group_count;
    gid_t groups[ACCOUNT_GROUPS_MAX]; /* supplementary, the primary one included */
    char name[SP_MSG_NAME_MAX + 1];
    char home[1024];
    char shell[256];
};

/* Finds a name, or a decimal uid, in the text of a passwd file (pure). Groups are not filled in. */
bool account_find(const char *text, size_t len, const char *wanted, struct account *ret);
/* Adds the groups of the text of a group file that list account->name (pure). */
void account_add_groups(const char *text, size_t len, struct account *account);

/* Looks a user up. "root" and 0 exist even without a passwd file; a decimal uid without an entry is
 * a user with that gid and home "/". false: no such user. */
bool account_load(struct agent *a, const char *wanted, struct account *ret);
