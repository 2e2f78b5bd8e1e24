/*
 * Starting one child: a clone that shares our memory until its execve (as vfork does), so that the
 * cost does not depend on our size, and that hands back why it failed. Unlike vfork the wait for it
 * has a deadline: a hostile process may stop the child before its execve.
 */
#pragma once

#include "account.h"
#include "exec_plan.h"

enum spawn_stage {
    SPAWN_CLONE = 1,
    SPAWN_SETUP,
    SPAWN_USER,
    SPAWN_CWD,
    SPAWN_EXEC,
    SPAWN_STUCK, /* killed at the deadline */
};

/* Of no use inside a user namespace (fcntl(2) F_SETLEASE asks for it in the first one): it only
 * tells the agent from its children. src/driver/container/plan.c grants it. */
#define SPAWN_GUARD_CAP CAP_LEASE

struct spawn_request {
    const struct exec_plan *plan;
    const struct account *account;
    int fds[3];       /* what becomes 0, 1, 2; all above 2 */
    bool terminal;    /* fds[0] becomes the controlling terminal */
    int group_fd;     /* cgroup directory to be born in; -1: none */
    bool deny_clone3; /* container tier, see spawn.c */
    bool drop_guard;  /* the program gets no SPAWN_GUARD_CAP, whoever it runs as */
    bool reset_oom;   /* write 0 to our inherited oom_score_adj */
};

struct spawn_result {
    pid_t pid;
    enum spawn_stage stage; /* of the failure */
    int error;              /* errno; 0: the program runs */
};

/* Blocks until the program runs or has failed, 60 seconds at most. After a failure the child, if
 * there was one (pid > 0), still has to be reaped. *block is the memory of the child's stack, kept
 * by the caller from one call to the next; NULL at first. */
struct spawn_result spawn_child(void **block, const struct spawn_request *request);

/* Sets the disposition of every signal to its default: whoever started us may have left some
 * ignored, and execve(2) hands that on, so that `yes | head` would not end. Once, at our start. */
void signals_reset(void);
