#include "session.h"

#include "account.h"
#include "exec_plan.h"
#include "link.h"
#include "output.h"
#include "pty.h"
#include "session_end.h"
#include "spawn.h"
#include "subscription.h"
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_USER "user"
#define ARGV_KEPT_BYTES 4096u /* of argv, for PROCESSES */

struct session *session_find(const struct agent *a, struct sp_span id)
{
    for (uint32_t i = 0; i < a->session_high; i++) {
        struct session *s = a->sessions[i];
        if (s && !s->forgotten && strlen(s->id) == id.len && memcmp(s->id, id.bytes, id.len) == 0)
            return s;
    }
    return NULL;
}

void session_reply_state(struct agent *a, uint32_t tag, const struct session *s)
{
    struct sp_msg_session m = {.state = s->ended ? SP_MSG_SESSION_ENDED : SP_MSG_SESSION_RUNNING,
                               .pid = s->pid,
                               .oldest_event = s->ring.oldest_id,
                               .next_event = s->ring.next_id,
                               .failed = s->failed};
    if (s->ended)
        m.exit = s->exit;
    struct sp_pack p = link_begin(&a->link);
    sp_msg_session_encode(&p, &m);
    link_commit(&a->link, SP_FRAME_STARTED, tag, &p);
}

static struct session *session_new(struct agent *a, const struct sp_msg_start *m)
{
    uint32_t slot = 0, slots = sizeof a->sessions / sizeof a->sessions[0];
    while (slot < slots && a->sessions[slot])
        slot++;
    struct session *s = slot < slots ? calloc(1, sizeof *s) : NULL;
    if (!s)
        return NULL;
    memcpy(s->id, m->session_id.bytes, m->session_id.len); /* bounded by the decoder */
    s->slot = slot;
    s->generation = ++a->generation;
    s->out_fd[0] = s->out_fd[1] = s->input.fd = s->terminal_fd = -1;
    s->overflow = m->overflow;
    s->grace_ms = m->grace_ms;
    ring_init(&s->ring, &a->pool, m->ring_bytes);
    a->sessions[slot] = s;
    if (slot >= a->session_high)
        a->session_high = slot + 1;
    a->live_count++;
    return s;
}

static void append_event(struct session *s, const struct sp_msg_event *event)
{
    uint8_t body[2 * SP_MSG_NAME_MAX + SP_MSG_TEXT_MAX];
    struct sp_pack p;
    sp_pack_init(&p, body, sizeof body);
    sp_msg_event_body_encode(&p, event);
    if (!p.overflow)
        (void)ring_append(&s->ring, event->kind, body + 1, p.len - 1, true);
}

/* --- descriptors of a child --------------------------------------------------------------------
 */

struct child_fds {
    int child[3]; /* -1: none; closed by the caller (null_fd excepted) */
    int slave;    /* the terminal, in all three places */
};

static bool make_pipe(int *ret_read, int *ret_write)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return false;
    *ret_read = fds[0];
    *ret_write = fds[1];
    return true;
}

static bool set_nonblocking(int fd)
{
    return fcntl(fd, F_SETFL, O_NONBLOCK) == 0;
}

static bool open_terminal(struct session *s, const struct sp_msg_start *m,
                          const struct account *account, struct child_fds *fds)
{
    int master;
    if (!pty_open(account->uid, m->rows, m->cols, &master, &fds->slave))
        return false;
    fds->child[0] = fds->child[1] = fds->child[2] = fds->slave;
    s->terminal_fd = s->out_fd[0] = master;
    s->input.is_terminal = true;
    /* A descriptor of its own for the input, so that it can be watched and closed alone. */
    s->input.fd = fcntl(master, F_DUPFD_CLOEXEC, 3);
    return s->input.fd >= 0;
}

static bool open_pipes(struct agent *a, struct session *s, const struct sp_msg_start *m,
                       struct child_fds *fds)
{
    if (m->stdin_open) {
        if (!make_pipe(&fds->child[0], &s->input.fd) || !set_nonblocking(s->input.fd))
            return false;
    } else {
        if (a->null_fd < 0)
            a->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (a->null_fd < 0 && !make_pipe(&fds->child[0], &s->input.fd))
            return false;
        if (a->null_fd >= 0)
            fds->child[0] = a->null_fd;
        else
            input_end(a, s); /* a pipe without a writer is at its end as well */
        s->input.none = true;
    }
    /* Our ends only: the child's ends are descriptions of their own and stay blocking. */
    return make_pipe(&s->out_fd[0], &fds->child[1]) && set_nonblocking(s->out_fd[0]) &&
           make_pipe(&s->out_fd[1], &fds->child[2]) && set_nonblocking(s->out_fd[1]);
}

static void close_child_fds(const struct agent *a, const struct child_fds *fds)
{
    if (fds->slave >= 0) {
        close(fds->slave);
        return;
    }
    for (int i = 0; i < 3; i++) {
        if (fds->child[i] >= 0 && fds->child[i] != a->null_fd)
            close(fds->child[i]);
    }
}

/* --- START -------------------------------------------------------------------------------------
 */

struct start_failure {
    const char *code;
    char message[SP_MSG_TEXT_MAX / 2];
    int exit_code; /* as a shell would say it */
};

static void explain(const struct spawn_result *result, const char *program, const char *cwd,
                    struct start_failure *ret)
{
    const char *why = strerror(result->error);
    ret->code = "internal";
    ret->exit_code = 125;
    if (result->error == EAGAIN || result->error == ENOMEM || result->error == E2BIG ||
        result->error == EMFILE || result->error == ENFILE) {
        ret->code = "resource_limit";
    } else if (result->stage == SPAWN_CWD) {
        ret->code = "cwd_not_found";
        snprintf(ret->message, sizeof ret->message, "%.300s: %s", cwd, why);
        return;
    } else if (result->stage == SPAWN_USER && result->error == EINVAL) {
        ret->code = "user_not_found"; /* an id that this user namespace does not have */
    } else if (result->stage == SPAWN_EXEC) {
        bool missing = result->error == ENOENT || result->error == ENOTDIR ||
                       result->error == ENAMETOOLONG || result->error == ELOOP;
        ret->code = missing ? "command_not_found" : "not_executable";
        ret->exit_code = missing ? 127 : 126;
        snprintf(ret->message, sizeof ret->message, "%.300s: %s", program, why);
        return;
    }
    snprintf(ret->message, sizeof ret->message, "%s", why);
}

/* Makes descriptors, group and child. false: *ret_failure says why it does not run. */
static bool launch(struct agent *a, struct session *s, const struct sp_msg_start *m,
                   const struct account *account, struct start_failure *ret_failure)
{
    struct child_fds fds = {.child = {-1, -1, -1}, .slave = -1};
    struct spawn_result result = {.stage = SPAWN_SETUP, .error = EMFILE};
    struct exec_plan *plan = exec_plan_new(&a->env, m, account);
    int group_fd = -1;
    bool terminal = m->rows > 0;
    if (!plan) {
        result.error = ENOMEM;
    } else if (terminal ? open_terminal(s, m, account, &fds) : open_pipes(a, s, m, &fds)) {
        group_fd = tree_create(a, &s->group);
        struct spawn_request request = {
            .plan = plan,
            .account = account,
            .fds = {fds.child[0], fds.child[1], fds.child[2]},
            .terminal = terminal,
            .group_fd = group_fd,
            .deny_clone3 = !a->is_vm,
            .drop_guard = a->guarded,
            .reset_oom = a->oom_adjusted,
        };
        s->oom_count_at_start = tree_oom_count(a);
        s->started_us = agent_active_us(a);
        if (a->is_vm && a->cgroup_fd >= 0 && group_fd < 0)
            result.error = ENOMEM; /* HOLD could not freeze it */
        else if (output_watch(a, s))
            result = spawn_child(&a->spawn_block, &request);
        agent_guard(a);
    }
    if (group_fd >= 0)
        close(group_fd);
    close_child_fds(a, &fds);
    bool runs = result.error == 0;
    if (runs)
        s->pid = result.pid;
    else
        explain(&result, plan ? plan->argv[0] : "", plan ? plan->cwd : "", ret_failure);
    free(plan);
    return runs;
}

static void keep_facts(struct session *s, const struct sp_msg_start *m,
                       const struct account *account)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    s->started_realtime_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    s->user = strdup(account->name);
    size_t len = 0;
    uint32_t count = 0;
    struct sp_span item;
    for (size_t at = 0; sp_msg_list_next(&m->argv, &at, &item) && at <= ARGV_KEPT_BYTES;) {
        len = at;
        count++;
    }
    uint8_t *bytes = malloc(len ? len : 1);
    if (bytes && len > 0)
        memcpy(bytes, m->argv.raw.bytes, len);
    s->argv = (struct sp_msg_list){.count = bytes ? count : 0, .raw = {bytes, bytes ? len : 0}};
}

static void start_command(struct agent *a, struct session *s, const struct sp_msg_start *m)
{
    struct account account;
    struct start_failure failure = {.code = "user_not_found", .exit_code = 125};
    char user[SP_MSG_NAME_MAX + 1];
    snprintf(user, sizeof user, "%.*s", (int)m->user.len, (const char *)m->user.bytes);
    if (!user[0])
        snprintf(user, sizeof user, DEFAULT_USER);
    if (!account_load(a, user, &account)) {
        snprintf(failure.message, sizeof failure.message, "%s: no such user", user);
    } else if (launch(a, s, m, &account, &failure)) {
        s->leader_alive = true;
        if (m->timeout_ms > 0)
            s->timeout_at_ms = s->started_us / 1000 + m->timeout_ms;
        keep_facts(s, m, &account);
        append_event(s, &(struct sp_msg_event){.kind = SP_EVENT_STARTED, .pid = s->pid});
        return;
    }
    s->failed = true;
    s->exit.exit_code = failure.exit_code;
    append_event(s, &(struct sp_msg_event){
                        .kind = SP_EVENT_ERROR,
                        .failed = {sp_span_of(failure.code), sp_span_of(failure.message)}});
    session_retire(a, s);
}

void session_start(struct agent *a, uint32_t tag, const struct sp_msg_start *m)
{
    struct session *s = session_find(a, m->session_id);
    if (s) {
        session_reply_state(a, tag, s);
        return;
    }
    if (!a->identified) {
        link_reply_error(&a->link, tag, "not_identified", "IDENTITY must come first");
        return;
    }
    if (a->held) {
        link_reply_error(&a->link, tag, "held", "RELEASE or IDENTITY must come first");
        return;
    }
    if (a->live_count >= AGENT_LIVE_MAX) {
        link_reply_error(&a->link, tag, "too_many", "commands running");
        return;
    }
    s = session_new(a, m);
    if (!s) {
        link_reply_error(&a->link, tag, "internal", "no memory");
        return;
    }
    start_command(a, s, m);
    session_reply_state(a, tag, s);
}

/* --- SIGNAL, FORGET, events ----------------------------------------------------------------------
 */

void session_signal(struct agent *a, uint32_t tag, const struct sp_msg_signal *m)
{
    struct session *s = session_find(a, m->session_id);
    if (!s) {
        link_reply_error(&a->link, tag, "not_found", "no such session");
        return;
    }
    /* Processes that outlived the leader can still be reached, as a whole. */
    bool left_over = m->scope == SP_SIGNAL_SESSION && !s->leader_alive && session_has_rest(a, s);
    if (!s->leader_alive && !left_over) {
        link_reply_error(&a->link, tag, "process_exited", "the command has ended");
        return;
    }
    if (m->scope == SP_SIGNAL_GROUP) /* the leader is not reaped: the id is its own */
        kill(-s->pid, m->signal);
    else if (m->signal == SIGKILL)
        tree_kill(a, s);
    else
        tree_signal(a, s, m->signal);
    link_reply_ok(&a->link, tag);
}

void session_forget(struct agent *a, struct session *s)
{
    subscription_drop_session(a, s);
    if (s->leader_alive || session_has_rest(a, s))
        tree_kill(a, s);
    if (s->ended) {
        session_free(a, s);
        return;
    }
    s->forgotten = true;
    s->timeout_at_ms = s->kill_at_ms = 0;
    output_close(s);
    s->terminal_fd = -1;
    input_end(a, s);
    if (!s->leader_alive) {
        session_retire(a, s);
        session_free(a, s);
    }
}

void session_ready(struct agent *a, enum watch_kind kind, uint32_t slot, uint32_t generation)
{
    struct session *s = slot < a->session_high ? a->sessions[slot] : NULL;
    if (!s || s->generation != generation)
        return; /* freed since the event was reported */
    if (kind == WATCH_STDIN) {
        input_ready(a, s);
        return;
    }
    output_read(a, s, kind == WATCH_STDERR);
    session_check_end(a, s);
}

void session_room_changed(struct agent *a, struct session *s)
{
    output_resume(a, s);
}
