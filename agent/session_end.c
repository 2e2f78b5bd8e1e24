#include "session_end.h"

#include "output.h"
#include "procs.h"
#include "subscription.h"
#include "tree.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define HELD_OPEN_MS 200u
#define KEPT_MS (60u * 60u * 1000u)
#define KILLED_WAIT_MS 500u /* after SIGKILL to everything: how long its end is waited for */
#define KILLED_POLL_MS 5u

bool session_has_rest(struct agent *a, struct session *s)
{
    if (s->group && tree_remove(a, s->group))
        s->group = 0;
    if (s->group)
        return true;
    if (a->cgroup_fd >= 0 || s->pid == 0)
        return false;
    for (uint32_t i = 0; i < a->session_high; i++) { /* the leader's id may be another's by now */
        const struct session *other = a->sessions[i];
        if (other && other != s && other->leader_alive && other->pid == s->pid)
            return false;
    }
    return procs_signal_session(s->pid, false, 0) > 0;
}

void session_retire(struct agent *a, struct session *s)
{
    output_close(s);
    s->terminal_fd = -1;
    input_end(a, s);
    free(s->user);
    free((void *)(uintptr_t)s->argv.raw.bytes);
    s->user = NULL;
    s->argv = (struct sp_msg_list){0};
    s->timeout_at_ms = s->kill_at_ms = s->cut_at_ms = 0;
    s->ended = true;
    s->ended_at_ms = a->now_ms;
    s->ended_order = ++a->ended_order;
    a->live_count--;
    a->ended_count++;
    a->tidy_due = true;
}

void session_free(struct agent *a, struct session *s)
{
    subscription_drop_session(a, s);
    tree_leave(a, s->group);
    ring_clear(&s->ring);
    a->sessions[s->slot] = NULL;
    while (a->session_high > 0 && !a->sessions[a->session_high - 1])
        a->session_high--;
    a->ended_count--;
    free(s);
}

static void append_exit(struct session *s)
{
    uint8_t body[64];
    struct sp_pack p;
    sp_pack_init(&p, body, sizeof body);
    sp_msg_event_body_encode(&p, &(struct sp_msg_event){.kind = SP_EVENT_EXITED, .exit = s->exit});
    (void)ring_append(&s->ring, SP_EVENT_EXITED, body + 1, p.len - 1, true);
}

/* After a time-out the end is told only when everything is gone (or cannot be got rid of). */
static bool is_cleared(struct agent *a, struct session *s)
{
    if (!s->timed_out)
        return true;
    if (s->group && tree_remove(a, s->group))
        s->group = 0;
    if (s->group && !s->killed) {
        if (a->now_ms < s->kill_at_ms)
            return false; /* the others have their grace */
        tree_kill(a, s);
        s->killed = true;
    } else if (a->cgroup_fd < 0 && !s->killed) {
        tree_kill(a, s);
        s->killed = true;
    }
    return !s->group || a->now_ms >= s->kill_at_ms + KILLED_WAIT_MS;
}

void session_check_end(struct agent *a, struct session *s)
{
    if (s->leader_alive || s->ended || s->forgotten)
        return;
    if (!is_cleared(a, s) || output_is_open(s))
        return;
    output_flush_dropped(s);
    append_exit(s);
    session_retire(a, s);
}

/* With a memory controller the session's own group counts: exact, whoever of the command was
 * killed. Else the sandbox's counter says only that somebody was; it is this command if it failed
 * the way a command fails whose process was killed: by SIGKILL, or as a shell that says so of its
 * child. */
static bool was_oom_killed(struct agent *a, const struct session *s, const struct sp_msg_exit *e)
{
    if (tree_group_oom(a, s->group))
        return true;
    return !s->killed && e->exit_code == 128 + SIGKILL && tree_oom_count(a) > s->oom_count_at_start;
}

static void take_exit(struct agent *a, struct session *s, int status, const struct rusage *usage)
{
    struct sp_msg_exit *e = &s->exit;
    if (WIFSIGNALED(status)) {
        e->signal = WTERMSIG(status);
        e->exit_code = 128 + e->signal;
        if (WCOREDUMP(status))
            e->flags |= SP_EXIT_CORE_DUMPED;
    } else {
        e->exit_code = WEXITSTATUS(status);
    }
    if (was_oom_killed(a, s, e))
        e->flags |= SP_EXIT_OOM;
    if (s->timed_out)
        e->flags |= SP_EXIT_TIMED_OUT;
    e->duration_us = agent_active_us(a) - s->started_us;
    e->cpu_us = (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000 +
                (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
    e->peak_memory_bytes = tree_peak_bytes(a, s->group);
    if (e->peak_memory_bytes == 0)
        e->peak_memory_bytes = (uint64_t)usage->ru_maxrss * 1024;
}

void session_child_ended(struct agent *a, pid_t pid, int status, const struct rusage *usage)
{
    struct session *s = NULL;
    for (uint32_t i = 0; i < a->session_high && !s; i++) {
        if (a->sessions[i] && a->sessions[i]->leader_alive && a->sessions[i]->pid == pid)
            s = a->sessions[i];
    }
    a->tidy_due = true;
    if (!s)
        return; /* an orphan, or a child that failed before its execve */
    s->leader_alive = false;
    s->timeout_at_ms = 0;
    if (s->forgotten) {
        session_retire(a, s);
        session_free(a, s);
        return;
    }
    take_exit(a, s, status, usage);
    input_end(a, s);
    s->cut_at_ms = a->now_ms + HELD_OPEN_MS;
    for (unsigned i = 0; i < 2; i++)
        output_read(a, s, i);
    session_check_end(a, s);
}

static bool is_due(const struct agent *a, uint64_t at_ms)
{
    return at_ms > 0 && a->now_ms >= at_ms;
}

static void run_live_timers(struct agent *a, struct session *s)
{
    if (is_due(a, s->timeout_at_ms)) {
        s->timeout_at_ms = 0;
        s->timed_out = true;
        s->kill_at_ms = a->now_ms + s->grace_ms;
        if (s->grace_ms > 0)
            tree_signal(a, s, SIGTERM);
    }
    if (is_due(a, s->kill_at_ms) && !s->killed && s->leader_alive) {
        tree_kill(a, s);
        s->killed = true;
    }
    if (s->leader_alive)
        return;
    if (is_due(a, s->cut_at_ms)) {
        if (!is_cleared(a, s)) {
            s->cut_at_ms = a->now_ms + HELD_OPEN_MS; /* the others may still say something */
        } else {
            s->cut_at_ms = 0;
            output_cut(a, s);
        }
    }
    session_check_end(a, s);
}

void session_run_timers(struct agent *a)
{
    if (a->held)
        return;
    for (uint32_t i = 0; i < a->session_high; i++) {
        struct session *s = a->sessions[i];
        if (s && !s->ended && !s->forgotten)
            run_live_timers(a, s);
    }
}

static uint64_t next_due(const struct agent *a, const struct session *s)
{
    uint64_t due = UINT64_MAX;
    const uint64_t at[] = {s->timeout_at_ms, s->killed || !s->leader_alive ? 0 : s->kill_at_ms,
                           s->leader_alive ? 0 : s->cut_at_ms,
                           /* waiting for the group to become empty: no event tells */
                           s->timed_out && !s->leader_alive ? a->now_ms + KILLED_POLL_MS : 0};
    for (unsigned i = 0; i < sizeof at / sizeof at[0]; i++) {
        if (at[i] > 0 && at[i] < due)
            due = at[i];
    }
    return due;
}

int session_next_timer_ms(const struct agent *a)
{
    uint64_t due = UINT64_MAX;
    if (a->held)
        return -1;
    for (uint32_t i = 0; i < a->session_high; i++) {
        const struct session *s = a->sessions[i];
        if (!s || s->forgotten)
            continue;
        uint64_t at = s->ended ? s->ended_at_ms + KEPT_MS : next_due(a, s);
        if (at < due)
            due = at;
    }
    if (due == UINT64_MAX)
        return -1;
    uint64_t wait = due > a->now_ms ? due - a->now_ms : 0;
    return wait < 60000 ? (int)wait : 60000;
}

void session_tidy(struct agent *a)
{
    struct session *oldest = NULL;
    a->tidy_due = false;
    tree_tidy(a);
    for (uint32_t i = 0; i < a->session_high; i++) {
        struct session *s = a->sessions[i];
        if (!s || !s->ended)
            continue;
        if (s->group && tree_remove(a, s->group))
            s->group = 0;
        if (!oldest || s->ended_order < oldest->ended_order)
            oldest = s;
    }
    if (oldest &&
        (a->ended_count > AGENT_ENDED_MAX || a->now_ms >= oldest->ended_at_ms + KEPT_MS)) {
        session_free(a, oldest);
        a->tidy_due = true; /* there may be more */
    }
}
