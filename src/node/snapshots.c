#include "node/snapshots.h"

#include <string.h>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/ids.h"
#include "base/json.h"
#include "base/log.h"
#include "base/time.h"
#include "disk/saved.h"
#include "node/action.h"
#include "node/forms.h"

#define REMOVERS 2
#define RETRY_MS 2000

enum phase {
    WAITS, /* to be taken */
    BUSY,  /* being taken or removed */
    DONE,  /* ready, failed or deleted, and reported */
};

struct snapshot {
    gint refs;
    char id[SP_ID_MAX], sandbox_id[SP_ID_MAX];
    bool memory, durable;
    /* Guarded by the lock. */
    bool want_deleted;
    enum phase phase;
    unsigned users;      /* what is being made from it */
    int64_t retry_at_ms; /* monotonic, of a removal; 0: none is due */
    json_t *failure;     /* it could not be taken, which is not tried again; may be NULL */
};

struct sp_snapshots {
    struct sp_node *node;
    GMutex lock;
    GHashTable *by_id; /* id → struct snapshot *, a reference each */
    GThreadPool *removers;
    gint n_removals; /* atomic: queued and running */
};

static void snapshot_unref(void *data)
{
    struct snapshot *snapshot = data;
    if (!g_atomic_int_dec_and_test(&snapshot->refs))
        return;
    json_decref(snapshot->failure);
    g_free(snapshot);
}

static struct snapshot *snapshot_ref(struct snapshot *snapshot)
{
    g_atomic_int_inc(&snapshot->refs);
    return snapshot;
}

static void report(struct sp_snapshots *snapshots, const struct snapshot *snapshot,
                   const char *state, json_t *more)
{
    json_t *value =
        json_pack("{s:s,s:s,s:b}", "id", snapshot->id, "state", state, "memory", snapshot->memory);
    if (more) {
        json_object_update(value, more);
        json_decref(more);
    }
    sp_outbox_put(snapshots->node->snapshot_reports, snapshot->id, value);
}

/* The lock is held. */
static void fail(struct sp_snapshots *snapshots, struct snapshot *snapshot, const char *code,
                 const char *message)
{
    json_t *error = json_object();
    json_object_set_new(error, "code", sp_json_text(code));
    json_object_set_new(error, "message", sp_json_text(message));
    json_decref(snapshot->failure);
    snapshot->failure = json_pack("{s:o}", "error", error);
    snapshot->phase = DONE;
    report(snapshots, snapshot, "failed", json_incref(snapshot->failure));
}

/* --- removal */
/* Begins it when nothing uses the snapshot; the lock is held. */
static void remove_if_idle(struct sp_snapshots *snapshots, struct snapshot *snapshot)
{
    if (!snapshot->want_deleted || snapshot->phase == BUSY || snapshot->users > 0 ||
        sp_node_stopping(snapshots->node))
        return;
    snapshot->phase = BUSY;
    snapshot->retry_at_ms = 0;
    g_atomic_int_inc(&snapshots->n_removals);
    g_thread_pool_push(snapshots->removers, snapshot_ref(snapshot), NULL);
}

static void remove_one(void *data, void *user)
{
    struct snapshot *snapshot = data;
    struct sp_snapshots *snapshots = user;
    g_autoptr(GError) error = NULL;
    bool gone = !sp_node_stopping(snapshots->node) &&
                sp_failpoint("snapshot.before_remove", &error) &&
                sp_forms_remove(snapshots->node, snapshot->id, &error);
    if (gone)
        sp_failpoint("snapshot.removed", NULL);
    g_mutex_lock(&snapshots->lock);
    snapshot->phase = DONE;
    if (!gone && error) {
        sp_log_error("a snapshot could not be removed, trying again", error, "snapshot",
                     snapshot->id, NULL);
        snapshot->retry_at_ms = sp_time_monotonic_ms() + RETRY_MS;
    } else if (gone) {
        report(snapshots, snapshot, "deleted", NULL);
        g_hash_table_remove(snapshots->by_id, snapshot->id);
    }
    g_mutex_unlock(&snapshots->lock);
    snapshot_unref(snapshot);
    g_atomic_int_add(&snapshots->n_removals, -1);
}

void sp_snapshots_tick(struct sp_snapshots *snapshots)
{
    int64_t now = sp_time_monotonic_ms();
    GHashTableIter iter;
    void *value;
    g_mutex_lock(&snapshots->lock);
    g_hash_table_iter_init(&iter, snapshots->by_id);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct snapshot *snapshot = value;
        if (snapshot->retry_at_ms && snapshot->retry_at_ms <= now)
            remove_if_idle(snapshots, snapshot);
    }
    g_mutex_unlock(&snapshots->lock);
}

/* --- what is wanted */
static struct snapshot *get_locked(struct sp_snapshots *snapshots, const char *id)
{
    struct snapshot *snapshot = g_hash_table_lookup(snapshots->by_id, id);
    if (snapshot)
        return snapshot;
    snapshot = g_new0(struct snapshot, 1);
    snapshot->refs = 1;
    g_strlcpy(snapshot->id, id, sizeof(snapshot->id));
    g_hash_table_insert(snapshots->by_id, snapshot->id, snapshot);
    return snapshot;
}

/* A form of that id is on the disk: it is the snapshot, unless it cannot be used. The lock is held;
 * the manifest is a small file. */
static void take_found(struct sp_snapshots *snapshots, struct snapshot *snapshot)
{
    struct sp_node *node = snapshots->node;
    g_autofree char *dir = sp_saved_path(node->volume, snapshot->id);
    struct sp_saved_manifest manifest = {0};
    g_autoptr(GError) error = NULL;
    snapshot->phase = DONE;
    if (sp_saved_load(dir, &manifest, &error)) {
        int64_t bytes = 0;
        for (guint i = 0; manifest.files && i < manifest.files->len; i++)
            bytes += g_array_index(manifest.files, struct sp_saved_file, i).data_bytes;
        snapshot->memory = manifest.memory;
        report(snapshots, snapshot, "ready", json_pack("{s:I}", "size_bytes", (json_int_t)bytes));
        sp_saved_manifest_clear(&manifest);
        return;
    }
    g_autoptr(GError) cause = NULL;
    if (!sp_forms_remove(node, snapshot->id, &cause))
        sp_log_error("a snapshot that cannot be used stays", cause, "snapshot", snapshot->id, NULL);
    fail(snapshots, snapshot, sp_error_name(error), error->message);
}

/* True: its sandbox has something to do now. */
static bool want_one(struct sp_snapshots *snapshots, json_t *row, char ret_sandbox[SP_ID_MAX])
{
    const char *id = json_string_value(json_object_get(row, "id"));
    const char *sandbox_id = json_string_value(json_object_get(row, "sandbox_id"));
    const char *desired = json_string_value(json_object_get(row, "desired"));
    if (!id || !sp_id_valid(id, "snp") || !desired)
        return false;
    bool deleted = strcmp(desired, "deleted") == 0;
    if (!deleted && (!sandbox_id || !sp_id_valid(sandbox_id, "sbx")))
        return false;
    bool due = false;
    g_mutex_lock(&snapshots->lock);
    struct snapshot *snapshot = get_locked(snapshots, id);
    snapshot->want_deleted |= deleted; /* for ever */
    if (snapshot->want_deleted) {
        remove_if_idle(snapshots, snapshot);
    } else if (snapshot->failure) {
        report(snapshots, snapshot, "failed", json_incref(snapshot->failure));
    } else if (snapshot->phase != BUSY) {
        g_strlcpy(snapshot->sandbox_id, sandbox_id, sizeof(snapshot->sandbox_id));
        json_t *memory = json_object_get(row, "memory"), *durable = json_object_get(row, "durable");
        snapshot->memory = !json_is_false(memory);
        snapshot->durable = !json_is_false(durable);
        snapshot->phase = WAITS;
        if (sp_saved_exists(snapshots->node->volume, id))
            take_found(snapshots, snapshot);
        else
            due = true;
        g_strlcpy(ret_sandbox, sandbox_id, SP_ID_MAX);
    }
    g_mutex_unlock(&snapshots->lock);
    return due;
}

void sp_snapshots_want(struct sp_snapshots *snapshots, json_t *rows)
{
    struct sp_table *table = snapshots->node->table;
    char sandbox_id[SP_ID_MAX];
    json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        if (!want_one(snapshots, row, sandbox_id))
            continue;
        g_mutex_lock(&table->lock);
        struct sp_sandbox *sandbox = g_hash_table_lookup(table->by_id, sandbox_id);
        if (sandbox)
            sp_action_consider(sandbox);
        g_mutex_unlock(&table->lock);
        if (!sandbox)
            sp_snapshots_fail(snapshots, sandbox_id, "the sandbox is not there any more");
    }
}

/* One that waits; the lock is held. */
static struct snapshot *next_due(struct sp_snapshots *snapshots, const char *sandbox_id)
{
    GHashTableIter iter;
    void *value;
    g_hash_table_iter_init(&iter, snapshots->by_id);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        struct snapshot *snapshot = value;
        if (snapshot->phase == WAITS && !snapshot->want_deleted &&
            strcmp(snapshot->sandbox_id, sandbox_id) == 0)
            return snapshot;
    }
    return NULL;
}

bool sp_snapshots_due(struct sp_snapshots *snapshots, const char *sandbox_id)
{
    g_mutex_lock(&snapshots->lock);
    bool due = next_due(snapshots, sandbox_id) != NULL;
    g_mutex_unlock(&snapshots->lock);
    return due;
}

void sp_snapshots_fail(struct sp_snapshots *snapshots, const char *sandbox_id, const char *reason)
{
    struct snapshot *snapshot;
    g_mutex_lock(&snapshots->lock);
    while ((snapshot = next_due(snapshots, sandbox_id)))
        fail(snapshots, snapshot, "failed_precondition", reason);
    g_mutex_unlock(&snapshots->lock);
}

/* --- taking */
static void take(struct sp_snapshots *snapshots, struct sp_sandbox *sandbox,
                 struct snapshot *snapshot)
{
    struct sp_save_spec spec = {
        .saved_name = snapshot->id, .memory = snapshot->memory, .durable = snapshot->durable};
    struct sp_snapshot_taken taken = {0};
    json_t *steps = json_array();
    g_autoptr(GError) error = NULL;
    bool fine = sp_snapshot_take(sandbox, &spec, steps, &taken, &error);
    if (fine)
        sp_log(SP_LOG_INFO, "snapshot is taken", "snapshot", snapshot->id, "sandbox", sandbox->id,
               NULL);
    else
        sp_log_error("snapshot could not be taken", error, "snapshot", snapshot->id, "sandbox",
                     sandbox->id, NULL);
    g_mutex_lock(&snapshots->lock);
    snapshot->phase = DONE;
    if (fine) {
        snapshot->memory = taken.memory;
        report(snapshots, snapshot, "ready",
               json_pack("{s:I,s:O}", "size_bytes", (json_int_t)taken.size_bytes, "steps", steps));
    } else if (sp_node_stopping(snapshots->node)) {
        snapshot->phase = WAITS; /* for the next worker */
    } else {
        fail(snapshots, snapshot, sp_error_name(error), error->message);
    }
    remove_if_idle(snapshots, snapshot);
    g_mutex_unlock(&snapshots->lock);
    json_decref(steps);
}

void sp_snapshots_serve(struct sp_snapshots *snapshots, struct sp_sandbox *sandbox)
{
    while (!sp_node_stopping(snapshots->node) && !sp_sandbox_doomed(sandbox)) {
        g_mutex_lock(&snapshots->lock);
        struct snapshot *snapshot = next_due(snapshots, sandbox->id);
        if (snapshot) {
            snapshot->phase = BUSY;
            snapshot_ref(snapshot);
        }
        g_mutex_unlock(&snapshots->lock);
        if (!snapshot)
            return;
        take(snapshots, sandbox, snapshot);
        snapshot_unref(snapshot);
    }
}

/* --- use */
bool sp_snapshots_hold(struct sp_snapshots *snapshots, const char *id, GError **error)
{
    g_mutex_lock(&snapshots->lock);
    struct snapshot *snapshot = sp_id_valid(id, "snp") ? get_locked(snapshots, id) : NULL;
    if (snapshot && snapshot->phase == WAITS && !snapshot->sandbox_id[0])
        snapshot->phase = DONE; /* not listed: nothing is to be taken */
    bool fine = snapshot && !snapshot->want_deleted && sp_saved_exists(snapshots->node->volume, id);
    if (fine)
        snapshot->users++;
    else if (snapshot && snapshot->phase == DONE && !snapshot->want_deleted)
        g_hash_table_remove(snapshots->by_id, id);
    g_mutex_unlock(&snapshots->lock);
    if (!fine)
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "snapshot %s is not on this node", id);
    return fine;
}

void sp_snapshots_release(struct sp_snapshots *snapshots, const char *id)
{
    g_mutex_lock(&snapshots->lock);
    struct snapshot *snapshot = g_hash_table_lookup(snapshots->by_id, id);
    if (snapshot) {
        snapshot->users--;
        remove_if_idle(snapshots, snapshot);
    }
    g_mutex_unlock(&snapshots->lock);
}

struct sp_snapshots *sp_snapshots_new(struct sp_node *node)
{
    struct sp_snapshots *snapshots = g_new0(struct sp_snapshots, 1);
    snapshots->node = node;
    g_mutex_init(&snapshots->lock);
    snapshots->by_id = g_hash_table_new_full(g_str_hash, g_str_equal, NULL, snapshot_unref);
    snapshots->removers = g_thread_pool_new(remove_one, snapshots, REMOVERS, FALSE, NULL);
    return snapshots;
}

bool sp_snapshots_stop(struct sp_snapshots *snapshots, int64_t timeout_ms)
{
    int64_t deadline = sp_time_monotonic_ms() + timeout_ms;
    while (g_atomic_int_get(&snapshots->n_removals) > 0) {
        if (sp_time_monotonic_ms() >= deadline)
            return false;
        g_usleep(5000);
    }
    return true;
}

void sp_snapshots_free(struct sp_snapshots *snapshots)
{
    g_thread_pool_free(snapshots->removers, TRUE, TRUE);
    g_hash_table_destroy(snapshots->by_id);
    g_mutex_clear(&snapshots->lock);
    g_free(snapshots);
}
