#include "hold.h"

#include "link.h"
#include "restored.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVENTS_BYTES 256u /* cgroup.events is two short lines */

/* Does something to one group, given as a directory. false: it failed. */
typedef bool group_fn(int group_fd, const char *value, uint64_t until_us);

static bool write_freeze(int group_fd, const char *value, uint64_t until_us)
{
    (void)until_us;
    int fd = openat(group_fd, "cgroup.freeze", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool done = write(fd, value, 1) == 1;
    int saved = errno;
    close(fd);
    errno = saved;
    return done;
}

/* cgroup.events tells every change by POLLPRI (kernel: cgroup-v2.rst), counted from the last read.
 */
static bool wait_frozen(int group_fd, const char *value, uint64_t until_us)
{
    (void)value;
    int fd = openat(group_fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
    bool frozen = false;
    while (fd >= 0) {
        char text[EVENTS_BYTES];
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        frozen = strstr(text, "frozen 1") != NULL;
        uint64_t now_us = agent_clock_us();
        if (frozen || n < 0 || now_us >= until_us)
            break;
        struct pollfd event = {.fd = fd, .events = POLLPRI};
        (void)poll(&event, 1, (int)((until_us - now_us) / 1000) + 1);
    }
    if (fd >= 0)
        close(fd);
    if (!frozen)
        errno = ETIMEDOUT;
    return frozen;
}

/* Calls fn for every group that user processes live in; goes on after a failure, but tells it. In a
 * microVM the sessions' groups are frozen with the one above them. In a container the agent is a
 * member of that one itself. */
static bool each_group(const struct agent *a, group_fn *fn, const char *value, uint64_t until_us)
{
    if (a->is_vm)
        return fn(a->cgroup_fd, value, until_us);
    int top = openat(a->cgroup_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = top < 0 ? NULL : fdopendir(top);
    if (!list) {
        if (top >= 0)
            close(top);
        return false;
    }
    bool good = true;
    for (struct dirent *e; (e = readdir(list));) {
        if (e->d_name[0] != 's' || e->d_name[1] < '0' || e->d_name[1] > '9')
            continue;
        int fd = openat(dirfd(list), e->d_name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        good &= fd >= 0 && fn(fd, value, until_us);
        if (fd >= 0)
            close(fd);
    }
    closedir(list);
    return good;
}

bool hold_can_freeze(const struct agent *a)
{
    return a->cgroup_fd >= 0 && faccessat(a->cgroup_fd, "cgroup.freeze", F_OK, 0) == 0;
}

/* Writes back what the sandbox has written. sync(2) in a container would write back every file
 * system of the host. */
static bool sync_files(const struct agent *a)
{
    if (a->is_vm)
        sync();
    int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool done = fd >= 0 && syncfs(fd) == 0;
    if (fd >= 0)
        close(fd);
    return done;
}

bool hold_thaw(struct agent *a)
{
    if (hold_can_freeze(a) && !each_group(a, write_freeze, "0", 0))
        return false;
    if (a->held) /* may wrap: a checkpointed container can wake where the clock is behind */
        a->held_total_us += agent_clock_us() - a->held_since_us;
    a->held = a->hold_locked = false;
    return true;
}

void hold_begin(struct agent *a, uint32_t tag, const struct sp_msg_hold *m)
{
    bool was_held = a->held;
    uint32_t wait_ms = m->timeout_ms ? m->timeout_ms : SP_MSG_HOLD_TIMEOUT_MS_DEFAULT;
    const char *code = NULL, *message = NULL;
    if (!was_held && hold_can_freeze(a)) {
        a->held_since_us = agent_clock_us();
        if (!each_group(a, write_freeze, "1", 0)) {
            code = "internal";
            message = "the processes cannot be frozen";
        } else if (!each_group(a, wait_frozen, NULL, a->held_since_us + wait_ms * 1000ull)) {
            code = "busy";
            message = "a process does not stand still";
        }
    } else if (!was_held && a->is_vm) {
        code = "unsupported";
        message = "this kernel cannot freeze the processes";
    } else if (!was_held) {
        a->held_since_us = agent_clock_us();
    }
    if (!code && (m->flags & SP_HOLD_SYNC) && !sync_files(a)) {
        code = "internal";
        message = "the file systems cannot be written back";
    }
    if (!code) {
        a->held = true;
        restored_prune(a);
        link_reply_ok(&a->link, tag);
        return;
    }
    if (!was_held && !hold_thaw(a)) /* also the groups that did stand still */
        a->held = true;             /* RELEASE can try again */
    link_reply_error(&a->link, tag, code, message);
}

void hold_release(struct agent *a, uint32_t tag, const struct sp_msg_release *m)
{
    if (a->held && a->hold_locked) {
        link_reply_error(&a->link, tag, "not_identified", "only IDENTITY can end this hold");
    } else if (m->realtime_ns > 0 && !restored_set_clock(a, m->realtime_ns)) {
        link_reply_error(&a->link, tag, "internal", "the clock cannot be set");
    } else if (a->held && !hold_thaw(a)) {
        link_reply_error(&a->link, tag, "internal", "the processes cannot be thawed");
    } else {
        link_reply_ok(&a->link, tag);
    }
}
