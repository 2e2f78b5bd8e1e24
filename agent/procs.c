#include "procs.h"

#include "link.h"
#include "session.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WALK_MAX 32768u /* processes looked at in one walk */

bool procs_parse(const char *text, struct procs_stat *ret)
{
    /* The name is in parentheses and may hold anything, parentheses too: the last one counts. */
    const char *end = strrchr(text, ')');
    if (!end)
        return false;
    char state;
    int parent, group, session;
    unsigned long long utime, stime, start;
    long long rss_pages;
    /* proc_pid_stat(5): state ppid pgrp session tty tpgid flags 4×faults utime stime 2×children
     * priority nice threads itrealvalue starttime vsize rss */
    if (sscanf(
            end + 1,
            " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu %*u "
            "%lld",
            &state, &parent, &group, &session, &utime, &stime, &start, &rss_pages) != 8)
        return false;
    uint64_t ticks = (uint64_t)sysconf(_SC_CLK_TCK);
    *ret = (struct procs_stat){
        .pid = (pid_t)strtol(text, NULL, 10),
        .parent = parent,
        .session = session,
        .cpu_ms = (utime + stime) * 1000 / ticks,
        .start_ms = start * 1000 / ticks,
        .rss_bytes = rss_pages > 0 ? (uint64_t)rss_pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0,
        .zombie = state == 'Z' || state == 'X',
    };
    return true;
}

/* The beginning of /proc/<pid>/<file> as a string. */
static bool read_file_of(pid_t pid, const char *file, char *ret, size_t size)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/%s", (int)pid, file);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, ret, size - 1);
    close(fd);
    ret[n > 0 ? n : 0] = '\0';
    return n > 0;
}

bool procs_read(pid_t pid, struct procs_stat *ret)
{
    char text[1024];
    return read_file_of(pid, "stat", text, sizeof text) && procs_parse(text, ret);
}

bool procs_status_is_user(const char *text, uid_t uid)
{
    /* proc_pid_status(5). The name in the first line comes with its newlines escaped. */
    const char *line = strstr(text, "\nUid:");
    unsigned real, effective, saved;
    return line && sscanf(line + 5, "%u %u %u", &real, &effective, &saved) == 3 && real == uid &&
           effective == uid && saved == uid;
}

bool procs_runs_as(pid_t pid, uid_t uid)
{
    char text[2048];
    return read_file_of(pid, "status", text, sizeof text) && procs_status_is_user(text, uid);
}

/* All processes but the agent. The caller frees the list. */
static struct procs_stat *read_all(size_t *ret_count)
{
    *ret_count = 0;
    DIR *dir = opendir("/proc");
    if (!dir)
        return NULL;
    struct procs_stat *list = NULL;
    size_t room = 0, count = 0;
    for (struct dirent *e; count < WALK_MAX && (e = readdir(dir));) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        if (count == room) {
            size_t more = room ? 2 * room : 64;
            struct procs_stat *grown = realloc(list, more * sizeof *list);
            if (!grown)
                break;
            list = grown;
            room = more;
        }
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        if (pid != getpid() && procs_read(pid, &list[count]))
            count++;
    }
    closedir(dir);
    *ret_count = count;
    return list;
}

int procs_signal_session(pid_t leader, bool leader_alive, int signal)
{
    size_t count;
    struct procs_stat *list = read_all(&count);
    bool *in = calloc(count ? count : 1, sizeof *in);
    int signalled = 0;
    for (bool grew = in != NULL; grew;) {
        grew = false;
        for (size_t i = 0; i < count; i++) {
            if (in[i])
                continue;
            bool member = list[i].session == leader || (leader_alive && list[i].pid == leader);
            for (size_t j = 0; !member && j < count; j++)
                member = in[j] && list[j].pid == list[i].parent;
            if (member)
                grew = in[i] = true;
        }
    }
    for (size_t i = 0; in && i < count; i++) {
        if (in[i] && !list[i].zombie && kill(list[i].pid, signal) == 0)
            signalled++;
    }
    free(in);
    free(list);
    return signalled;
}

void procs_reply(struct agent *a, uint32_t tag)
{
    struct sp_pack p = link_begin(&a->link);
    uint8_t truncated = 0;
    uint32_t count = 0;
    sp_msg_process_list_encode(&p, 0, 0); /* filled in below, when the count is known */
    for (uint32_t i = 0; i < a->session_high; i++) {
        const struct session *s = a->sessions[i];
        if (!s || !s->leader_alive || s->forgotten)
            continue;
        struct procs_stat stat = {0};
        (void)procs_read(s->pid, &stat);
        struct sp_msg_process process = {
            .session_id = sp_span_of(s->id),
            .pid = s->pid,
            .user = sp_span_of(s->user),
            .argv = s->argv,
            .started_realtime_ms = s->started_realtime_ms,
            .cpu_ms = stat.cpu_ms,
            .rss_bytes = stat.rss_bytes,
        };
        size_t before = p.len;
        sp_msg_process_encode(&p, &process);
        if (p.overflow) {
            p.overflow = false;
            p.len = before;
            truncated = 1;
            break;
        }
        count++;
    }
    struct sp_pack head = p;
    head.len = 0;
    sp_msg_process_list_encode(&head, truncated, count);
    link_commit(&a->link, SP_FRAME_PROCESS_LIST, tag, &p);
}
