/* The launched process between clone3 and execve. */
#pragma once

#include <stdint.h>

struct sock_filter;
struct sp_plan;

/* Shared by launcher and child (CLONE_VM). The launcher owns it and may touch only `go` until
 * child_tid is 0, when the child has exec'd or ended. */
struct sp_launch {
    const struct sp_plan *plan;
    const struct sock_filter *program; /* seccomp; NULL none */
    uint16_t n_program;
    uint32_t go;        /* futex(2): the child waits while it is SP_GO_WAIT */
    uint32_t child_tid; /* CLONE_CHILD_CLEARTID: zeroed and woken by the kernel */
    int failed_place;   /* step index or enum sp_launch_place, valid with failed_errno */
    int failed_errno;   /* 0: no failure */
    int at_exec;        /* 1: all steps are done */
    int listen_fd;      /* the child's, of SP_STEP_LISTEN; 0: none */
};

enum { SP_GO_WAIT, SP_GO_RUN, SP_GO_EXIT };

/* Runs on a stack of its own in the launcher's memory; never returns. Only raw system calls. */
void sp_launch_child(void *launch);
