#include "node/making.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/time.h"
#include "disk/template.h"
#include "node/drivers.h"
#include "node/pool.h"

/* A guest without KVM on a busy machine takes its time. */
#define AGENT_READY_MS 60000
#define IDENTITY_MS 30000
#define READY_EXEC_MS 60000
#define READY_SESSION "space-ready"
#define ENTROPY_BYTES 64
#define VM_AGENT_RESERVE_BYTES (16 << 20)

static void add_step(void *user, const char *step, int64_t duration_us)
{
    if (user)
        json_array_append_new(
            user, json_pack("{s:s,s:I}", "name", step, "duration_us", (json_int_t)duration_us));
}

void sp_making_step(struct sp_making *m, const char *name, int64_t duration_us)
{
    add_step(m->steps, name, duration_us);
}

static void log_progress(void *user, const char *line)
{
    const struct sp_making *m = user;
    sp_log(SP_LOG_INFO, "preparing a boot image", "sandbox", m->id, "line", line, NULL);
}

bool sp_making_template(struct sp_making *m, GError **error)
{
    m->driver = sp_drivers_get(m->node->drivers, m->spec->isolation, error);
    if (!m->driver)
        return false;
    m->template_dir = sp_template_dir(m->node->volume, m->spec->template_digest);
    if (!m->template_dir) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "not a template digest: %s",
                    m->spec->template_digest);
        return false;
    }
    if (access(m->template_dir, F_OK) < 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "template %s is not on this node",
                    m->spec->template_digest);
        return false;
    }
    return sp_template_config_load(m->template_dir, &m->config, error);
}

bool sp_making_dirs(struct sp_making *m, GError **error)
{
    if (mkdir(m->run_dir, 0700) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "mkdir %s", m->run_dir);
        return false;
    }
    g_autofree char *sessions = g_build_filename(m->run_dir, "sessions", NULL);
    if (mkdir(sessions, 0700) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "mkdir %s", sessions);
        return false;
    }
    return true;
}

/* The driver may have taken a VMM that was started ahead: its slot is the owner's now, and the one
 * that was meant is free. */
static void settle_slot(struct sp_making *m)
{
    unsigned real = m->driver->ops->slot ? m->driver->ops->slot(m->instance) : m->slot;
    if (real == m->slot || real == G_MAXUINT || !m->slot_at)
        return;
    struct sp_table *table = m->node->table;
    g_mutex_lock(&table->lock);
    *m->slot_at = (int)real;
    sp_slots_release(&table->slots, m->slot);
    g_mutex_unlock(&table->lock);
    m->slot = real;
    sp_pool_vmm_taken(m->node->pool, real);
}

bool sp_making_instance(struct sp_making *m, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    if (!m->driver->ops->prepare(m->driver, m->template_dir, &m->spec->shape, log_progress, m,
                                 error))
        return false;
    sp_making_step(m, "prepare", sp_time_monotonic_us() - began);
    struct sp_driver_spec spec = {
        .id = m->id,
        .name = m->name,
        .run_dir = m->run_dir,
        .template_dir = m->template_dir,
        .template_digest = m->spec->template_digest,
        .slot = m->slot,
        .hostname = m->spec->hostname ? m->spec->hostname : m->id,
        .shape = m->spec->shape,
        .saved_dir = m->saved_dir,
        .saved_use = m->saved_use,
    };
    sp_pool_making(m->node->pool, true);
    m->instance = m->driver->ops->create(m->driver, &spec, add_step, m->steps, error);
    if (m->instance)
        settle_slot(m);
    sp_pool_making(m->node->pool, false);
    return m->instance != NULL;
}

static int connect_agent(void *user, GError **error)
{
    struct sp_instance *instance = user;
    return instance->driver->ops->connect_agent(instance, error);
}

struct sp_link *sp_making_start_link(const char *id, struct sp_instance *instance,
                                     void (*on_gone)(void *), void *gone_user, GError **error)
{
    const struct sp_driver_ops *ops = instance->driver->ops;
    struct sp_link_spec spec = {
        .sandbox_id = id,
        .connect = connect_agent,
        .connect_user = instance,
        .pidfd = ops->pidfd(instance),
        .max_event_data = CLAMP(ops->max_event_data, SP_MSG_EVENT_DATA_MIN, SP_MSG_EVENT_DATA_MAX),
        .on_gone = on_gone,
        .gone_user = gone_user,
    };
    return sp_link_start(&spec, error);
}

bool sp_making_link(struct sp_making *m, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    m->link = sp_making_start_link(m->id, m->instance, m->on_gone, m->gone_user, error);
    if (!m->link || !sp_link_wait_ready(m->link, began + AGENT_READY_MS * (int64_t)1000, error))
        return false;
    sp_making_step(m, "agent", sp_time_monotonic_us() - began);
    return true;
}

/* The template's environment, and the sandbox's over it. */
static char **merged_env(char *const *base, char *const *over)
{
    GPtrArray *env = g_ptr_array_new();
    for (char *const *pair = base; pair && *pair; pair++) {
        size_t key_len = strcspn(*pair, "=") + 1;
        bool replaced = false;
        for (char *const *other = over; other && *other && !replaced; other++)
            replaced = strncmp(*pair, *other, key_len) == 0;
        if (!replaced)
            g_ptr_array_add(env, *pair);
    }
    for (char *const *pair = over; pair && *pair; pair++)
        g_ptr_array_add(env, *pair);
    g_ptr_array_add(env, NULL);
    return (char **)g_ptr_array_free(env, FALSE); /* the strings are borrowed */
}

bool sp_making_identity(struct sp_making *m, GError **error)
{
    const struct sp_driver_ops *ops = m->driver->ops;
    int64_t began = sp_time_monotonic_us();
    uint8_t entropy[ENTROPY_BYTES];
    char machine_id[SP_HASH_HEX];
    sp_secret_hash(m->id, machine_id); /* always the same for a sandbox */
    machine_id[32] = '\0';
    g_autofree char **env = merged_env(m->config.env, m->spec->env);
    struct sp_msg_identity identity = {
        .hostname = sp_span_of(m->spec->hostname),
        .machine_id = sp_span_of(machine_id),
        .env = {.count = g_strv_length(env), .strings = (const char *const *)env},
        .pids_max = ops->agent_sets_pids ? (uint32_t)MIN(m->spec->shape.pids, UINT32_MAX) : 0,
        .memory_reserve_bytes = ops->agent_sets_pids ? VM_AGENT_RESERVE_BYTES : 0,
    };
    if (ops->needs_clock_and_entropy) {
        sp_random_bytes(entropy, sizeof(entropy));
        identity.entropy = (struct sp_span){entropy, sizeof(entropy)};
        identity.realtime_ns = (uint64_t)g_get_real_time() * 1000;
    }
    int64_t limit_ms = m->identity_ms ? m->identity_ms : IDENTITY_MS;
    bool fine = sp_link_identity(m->link, &identity, began + limit_ms * 1000, error);
    explicit_bzero(entropy, sizeof(entropy));
    if (!fine) {
        g_prefix_error(error, "giving the sandbox its identity: ");
        return false;
    }
    sp_making_step(m, "identity", sp_time_monotonic_us() - began);
    return true;
}

/* Waits for the end of the ready command. */
static bool await_ready_exit(struct sp_link_sub *sub, int64_t deadline_us, GError **error)
{
    for (;;) {
        struct sp_link_event *taken = NULL;
        enum sp_pull pull = sp_link_sub_pull(sub, deadline_us, &taken);
        g_autofree struct sp_link_event *event = taken;
        if (pull == SP_PULL_GAP)
            continue;
        if (pull != SP_PULL_EVENT) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the ready command did not end%s%s",
                        pull == SP_PULL_LOST ? ": " : " in time",
                        pull == SP_PULL_LOST ? sp_link_sub_reason(sub) : "");
            return false;
        }
        sp_link_sub_ack(sub, event->id, event->weight_end);
        if (event->kind == SP_EVENT_ERROR) {
            g_autofree char *text = g_utf8_make_valid((const char *)event->data + event->code_len,
                                                      event->data_len - event->code_len);
            g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the ready command did not run: %s",
                        text);
            return false;
        }
        if (event->kind != SP_EVENT_EXITED)
            continue;
        if (event->exit.exit_code == 0)
            return true;
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "the ready command ended with code %d",
                    event->exit.exit_code);
        return false;
    }
}

bool sp_making_ready(struct sp_making *m, bool plain, GError **error)
{
    static const char *const last_resort[] = {"/bin/true", NULL};
    int64_t began = sp_time_monotonic_us();
    const char *const *argv = plain ? NULL : (const char *const *)m->config.ready;
    if (!argv || !*argv)
        argv = m->driver->ops->ready_command ? m->driver->ops->ready_command : last_resort;
    const char *user = m->spec->user && *m->spec->user ? m->spec->user : m->config.user;
    struct sp_msg_start start = {
        .session_id = sp_span_of(READY_SESSION),
        .argv = {.count = g_strv_length((char **)argv), .strings = argv},
        .cwd = sp_span_of("/"),
        .user = sp_span_of(user),
        .timeout_ms = READY_EXEC_MS,
    };
    int64_t deadline = began + READY_EXEC_MS * (int64_t)1000;
    struct sp_link_sub *sub =
        sp_link_subscribe(m->link, READY_SESSION, &start, 0, deadline, NULL, error);
    bool fine = sub && await_ready_exit(sub, deadline, error);
    sp_link_sub_free(sub);
    if (!fine)
        return false;
    sp_link_forget(m->link, READY_SESSION);
    sp_making_step(m, "ready", sp_time_monotonic_us() - began);
    return true;
}

bool sp_making_mark(struct sp_making *m, GError **error)
{
    g_autofree char *path = g_build_filename(m->run_dir, "ready", NULL);
    GError *cause = NULL;
    if (g_file_set_contents_full(path, "", 0, G_FILE_SET_CONTENTS_NONE, 0600, &cause))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s", cause->message);
    g_error_free(cause);
    return false;
}

void sp_making_clear(struct sp_making *m)
{
    sp_template_config_clear(&m->config);
    g_clear_pointer(&m->template_dir, g_free);
}
