/*
 * space-agent: what its modules share.
 *
 * One thread, one epoll loop. `struct agent` is the only state; it lives in main.c and is handed to
 * every module. Modules and who uses whom, top down:
 *
 *   main → vm_init, link → request → session, subscription, identity, hold, procs
 *   identity → hold → restored → procs
 *   session → spawn, tree, input, ring, account, exec_plan, pty
 *
 * The host is the owner of the agent and is trusted with it; every process of the sandbox is
 * hostile: what they can touch (pipes, /etc/passwd, /proc) is read with bounds and never blocks.
 */
#pragma once

#include "ring.h"
#include "wire/agent_msg.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#ifndef AGENT_BUILD
#define AGENT_BUILD "space-agent"
#endif

#define AGENT_FRAME_MAX (SP_FRAME_HEADER_BYTES + SP_FRAME_MAX_PAYLOAD)
#define AGENT_SCRATCH_BYTES 65536u
#define AGENT_LIVE_MAX 256u  /* sessions that run */
#define AGENT_ENDED_MAX 256u /* sessions that have ended and are kept */
#define AGENT_SUBSCRIPTIONS_MAX 512u
#define AGENT_LEFT_GROUPS_MAX 64u
#define AGENT_RINGS_BYTES (32u * 1024u * 1024u) /* memory of all rings together */

/* What an epoll event is about: kind in the low byte, slot above, generation in the high half. */
enum watch_kind {
    WATCH_SIGNALS = 1,
    WATCH_LISTENER,
    WATCH_LINK,
    WATCH_STDOUT, /* of a session: WATCH_STDOUT + stream */
    WATCH_STDERR,
    WATCH_STDIN,
};

struct link {
    int fd;         /* -1: none */
    bool connected; /* microVM: the host has the port open */
    bool greeted;   /* a HELLO was answered on this connection */
    bool quiet;     /* after QUIESCE: nothing is written until the next HELLO */
    bool readable, writable;
    bool desynced; /* looking for the next HELLO */
    uint32_t version;
    uint32_t max_event_data;
    size_t in_len;
    size_t out_head; /* start of the first frame that is not sent entirely */
    size_t out_sent; /* bytes before this are written */
    size_t out_len;
    uint8_t in[2 * AGENT_FRAME_MAX];
    uint8_t out[3 * AGENT_FRAME_MAX];
};

struct subscription {
    struct session *session; /* NULL: free */
    uint32_t tag;
    uint64_t credit_bytes, sent_bytes;
    uint64_t acked;
    struct ring_cursor cursor;
};

struct agent {
    int epoll_fd, signal_fd, listen_fd;
    int cgroup_fd; /* directory the groups of sessions are made in; -1: none */
    int oom_fd;    /* counter of OOM kills of the whole sandbox; -1: none */
    int random_fd; /* /dev/urandom, opened before any user process runs; -1: open when needed */
    int null_fd;
    int run_fd;        /* /run/space; -1: none */
    int generation_fd; /* /run/space/generation; -1: none */
    bool is_vm;
    bool is_init;      /* PID 1 */
    bool guarded;      /* we have SPAWN_GUARD_CAP, which no child gets: see agent_guard() */
    bool oom_adjusted; /* our oom_score_adj is lowered: children reset theirs */
    bool has_memory_controller;
    bool identified;
    bool held;        /* HOLD: user processes stand still, nothing is started */
    bool hold_locked; /* the hold cannot end by RELEASE: who we are is not sure any more */
    bool work_left;   /* something is due although no descriptor is ready */
    bool tidy_due;    /* groups of ended sessions may be empty now */
    uint64_t now_ms;  /* agent_active_us at the last wake-up */
    uint64_t held_since_us, held_total_us; /* CLOCK_MONOTONIC; without the present hold */
    uint32_t restores;                     /* IDENTITYs that ended a hold */
    uint8_t instance[SP_MSG_NONCE_BYTES];

    /* default environment, from IDENTITY: a decoded list whose bytes we own */
    struct sp_msg_list env;

    struct session *sessions[AGENT_LIVE_MAX + AGENT_ENDED_MAX];
    uint32_t session_high; /* slots in use are below this */
    uint32_t live_count, ended_count;
    uint32_t generation;
    uint64_t group_count;                        /* number of the last cgroup */
    uint64_t left_groups[AGENT_LEFT_GROUPS_MAX]; /* of forgotten sessions, not empty yet; 0: free */
    uint64_t ended_order;
    struct ring_pool pool;
    void *spawn_block; /* see spawn_child */

    uint32_t subscription_high; /* slots in use are below this */
    uint32_t subscription_turn; /* who is served first */
    struct subscription subscriptions[AGENT_SUBSCRIPTIONS_MAX];

    struct link link;
    uint8_t scratch[AGENT_SCRATCH_BYTES]; /* for the duration of one call only */
};

/* CLOCK_MONOTONIC. */
uint64_t agent_clock_us(void);
/* The same without the time user processes were held: what deadlines of commands count in. It
 * stands still during a hold. */
uint64_t agent_active_us(const struct agent *a);
/* Adds, changes or removes an epoll watch (op: EPOLL_CTL_*). */
bool agent_watch(struct agent *a, int op, int fd, uint32_t events, enum watch_kind kind,
                 uint32_t slot, uint32_t generation);
/* Sees to it that nobody in the sandbox can look into us or stop us; again after each spawn, since
 * a child's change of user may have changed that for the memory we share (fs.suid_dumpable). */
void agent_guard(struct agent *a);
/* Reports a fatal error and ends the agent (in a microVM: the machine). */
_Noreturn void agent_fatal(const struct agent *a, const char *what);
