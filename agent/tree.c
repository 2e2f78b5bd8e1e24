#include "tree.h"

#include "procs.h"
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_MAX_BYTES 64
#define KILL_ROUNDS 16 /* without cgroups: how often /proc is walked until nothing new is found */

/* Opens "s<number>/<file>" below the sandbox's group. */
static int open_file(const struct agent *a, uint64_t number, const char *file, int flags)
{
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "s%llu/%s", (unsigned long long)number, file);
    return openat(a->cgroup_fd, name, flags | O_CLOEXEC);
}

int tree_create(struct agent *a, uint64_t *ret_number)
{
    *ret_number = 0;
    if (a->cgroup_fd < 0)
        return -1;
    char name[NAME_MAX_BYTES];
    uint64_t number = ++a->group_count;
    snprintf(name, sizeof name, "s%llu", (unsigned long long)number);
    if (mkdirat(a->cgroup_fd, name, 0755) < 0)
        return -1;
    int fd = openat(a->cgroup_fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        unlinkat(a->cgroup_fd, name, AT_REMOVEDIR);
        return -1;
    }
    *ret_number = number;
    return fd;
}

/* Signals every process listed in the group's cgroup.procs. */
static void signal_group(const struct agent *a, uint64_t number, int signal)
{
    int fd = open_file(a, number, "cgroup.procs", O_RDONLY);
    if (fd < 0)
        return;
    FILE *list = fdopen(fd, "r");
    if (!list) {
        close(fd);
        return;
    }
    long pid;
    while (fscanf(list, "%ld", &pid) == 1) {
        if (pid > 1) /* 0 is a process of another pid namespace */
            kill((pid_t)pid, signal);
    }
    fclose(list);
}

static bool kill_group(const struct agent *a, uint64_t number)
{
    int fd = open_file(a, number, "cgroup.kill", O_WRONLY);
    if (fd < 0)
        return false;
    bool done = write(fd, "1", 1) == 1;
    close(fd);
    return done;
}

void tree_signal(struct agent *a, const struct session *s, int signal)
{
    if (s->group)
        signal_group(a, s->group, signal);
    else
        (void)procs_signal_session(s->pid, s->leader_alive, signal);
}

void tree_kill(struct agent *a, const struct session *s)
{
    if (s->leader_alive) { /* also when it could not be moved into the group */
        kill(-s->pid, SIGKILL);
        kill(s->pid, SIGKILL);
    }
    if (s->group && kill_group(a, s->group))
        return;
    for (int round = 0; round < KILL_ROUNDS; round++) {
        if (s->group)
            signal_group(a, s->group, SIGKILL); /* a kernel before 5.14 */
        else if (procs_signal_session(s->pid, s->leader_alive, SIGKILL) == 0)
            return;
    }
}

bool tree_remove(const struct agent *a, uint64_t number)
{
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "s%llu", (unsigned long long)number);
    return unlinkat(a->cgroup_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

void tree_leave(struct agent *a, uint64_t number)
{
    if (!number || tree_remove(a, number))
        return;
    for (unsigned i = 0; i < AGENT_LEFT_GROUPS_MAX; i++) {
        if (a->left_groups[i] == 0) {
            a->left_groups[i] = number;
            return;
        }
    }
    /* No place to remember it: it is removed with the whole sandbox. */
}

void tree_tidy(struct agent *a)
{
    for (unsigned i = 0; i < AGENT_LEFT_GROUPS_MAX; i++) {
        if (a->left_groups[i] && tree_remove(a, a->left_groups[i]))
            a->left_groups[i] = 0;
    }
}

/* Reads the whole of a small kernel file; "" on failure. */
static void read_small(int fd, char *ret, size_t size)
{
    ssize_t n = fd < 0 ? -1 : pread(fd, ret, size - 1, 0);
    ret[n > 0 ? n : 0] = '\0';
}

static uint64_t oom_line(const char *text)
{
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n')
            line++;
        if (strncmp(line, "oom_kill ", 9) == 0)
            return strtoull(line + 9, NULL, 10);
    }
    return 0;
}

uint64_t tree_oom_count(const struct agent *a)
{
    if (a->oom_fd < 0)
        return 0;
    char text[512];
    read_small(a->oom_fd, text, sizeof text);
    return oom_line(text);
}

static void read_group_file(const struct agent *a, uint64_t number, const char *file, char *ret,
                            size_t size)
{
    int fd = open_file(a, number, file, O_RDONLY);
    read_small(fd, ret, size);
    if (fd >= 0)
        close(fd);
}

bool tree_group_oom(const struct agent *a, uint64_t number)
{
    char text[512];
    if (!number || !a->has_memory_controller)
        return false;
    read_group_file(a, number, "memory.events", text, sizeof text);
    return oom_line(text) > 0;
}

uint64_t tree_peak_bytes(const struct agent *a, uint64_t number)
{
    char text[64];
    if (!number || !a->has_memory_controller)
        return 0;
    read_group_file(a, number, "memory.peak", text, sizeof text);
    return strtoull(text, NULL, 10);
}
