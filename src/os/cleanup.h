/* Scope-bound release of what GLib's g_autoptr does not know: plain structs and file descriptors.
 */
#pragma once

#include <unistd.h>

/* SP_CLEANUP(sp_close_fdp) int fd = -1; */
#define SP_CLEANUP(function) __attribute__((cleanup(function)))

/* Defines name_p(type **), which frees *p with name() unless it is NULL. */
#define SP_DEFINE_CLEANUP(type, name)                                                              \
    static inline void name##_p(type **p)                                                          \
    {                                                                                              \
        if (*p)                                                                                    \
            name(*p);                                                                              \
    }

static inline void sp_close_fdp(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

/* The fd, which the variable then does not own any more. */
static inline int sp_steal_fd(int *fd)
{
    int ret = *fd;
    *fd = -1;
    return ret;
}
