/*
 * Sessions: one command each, from START to the exit event, and the table of them.
 *
 * Life: session_start puts it into the table (also a command that could not run: it has ended with
 * EVENT 6). The leader's exit comes from wait4 only. The session ends when the leader has ended and
 * its output is at its end, or was cut off because a descendant holds it open. Ended sessions
 * are kept for replay until FORGET, their number or an hour.
 */
#pragma once

#include "agent.h"
#include "input.h"

#include <sys/resource.h>

struct session {
    char id[SP_MSG_SESSION_ID_MAX + 1];
    uint32_t slot, generation;
    pid_t pid; /* 0: never ran */
    bool leader_alive;
    bool ended;
    bool failed;
    bool forgotten; /* FORGET while it ran: only waits to be reaped */
    bool timed_out;
    bool killed;  /* everything was sent SIGKILL after the time-out */
    bool cutting; /* the last bytes of a held-open pipe are being taken */
    bool oom_seen;
    uint8_t overflow; /* enum sp_msg_overflow */
    uint64_t group;   /* number of its cgroup; 0: none (any more) */
    uint64_t ended_order;

    int out_fd[2]; /* stdout, stderr; -1 closed. A terminal has only the first */
    bool out_paused[2];
    uint64_t dropped_bytes[2];
    size_t cut_left[2]; /* bytes still taken while cutting */
    int terminal_fd;    /* for RESIZE; -1: not a terminal */
    struct input input;
    struct ring ring;

    uint64_t timeout_at_ms, kill_at_ms, cut_at_ms; /* 0: not set */
    uint64_t ended_at_ms;
    uint64_t grace_ms;
    uint64_t started_us; /* agent_active_us */
    uint64_t started_realtime_ms;
    uint64_t oom_count_at_start;
    struct sp_msg_exit exit;

    char *user;              /* for PROCESSES, freed at the end */
    struct sp_msg_list argv; /* as START sent it, owned bytes */
};

/* NULL: not found. */
struct session *session_find(const struct agent *a, struct sp_span id);
/* START; queues the answer. */
void session_start(struct agent *a, uint32_t tag, const struct sp_msg_start *m);
/* Queues STARTED. */
void session_reply_state(struct agent *a, uint32_t tag, const struct session *s);
void session_signal(struct agent *a, uint32_t tag, const struct sp_msg_signal *m);
void session_forget(struct agent *a, struct session *s);

/* An epoll event of one of its descriptors. */
void session_ready(struct agent *a, enum watch_kind kind, uint32_t slot, uint32_t generation);
/* The ring may take output again. */
void session_room_changed(struct agent *a, struct session *s);
/* A child was reaped. */
void session_child_ended(struct agent *a, pid_t pid, int status, const struct rusage *usage);

/* Acts on deadlines that have passed; not during a hold. */
void session_run_timers(struct agent *a);
/* Milliseconds to the next deadline; -1: none. */
int session_next_timer_ms(const struct agent *a);
/* Removes empty cgroups of ended sessions. */
void session_tidy(struct agent *a);
