/* Taking one snapshot: as a suspend up to the form, but the sandbox goes on. */
#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/time.h"
#include "disk/saved.h"
#include "node/forms.h"
#include "node/snapshots.h"
#include "node/standstill.h"
#include "node/steps.h"

struct taking {
    struct sp_sandbox *sandbox;
    const struct sp_driver_ops *ops;
    const struct sp_save_spec *spec;
    bool ran; /* it is to go on after the capture */
    json_t *steps;
    struct sp_saving *saving;
};

/* What a form is and adds to the disk, as well as can be told. */
static bool describe(struct sp_node *node, const char *name, struct sp_snapshot_taken *ret,
                     GError **error)
{
    g_autofree char *dir = sp_saved_path(node->volume, name);
    struct sp_saved_manifest manifest = {0};
    if (!sp_saved_load(dir, &manifest, error))
        return false;
    int64_t bytes = 0;
    for (guint i = 0; manifest.files && i < manifest.files->len; i++)
        bytes += g_array_index(manifest.files, struct sp_saved_file, i).data_bytes;
    *ret = (struct sp_snapshot_taken){manifest.memory, bytes};
    sp_saved_manifest_clear(&manifest);
    return true;
}

/* It becomes what the sandbox was suspended with, whatever was asked for. */
static bool take_suspended(struct sp_sandbox *sandbox, const struct sp_save_spec *spec,
                           json_t *steps, struct sp_snapshot_taken *ret, GError **error)
{
    struct sp_node *node = sandbox->node;
    int64_t began = sp_time_monotonic_us();
    if (!describe(node, sandbox->id, ret, error) || !sp_failpoint("snapshot.before_copy", error) ||
        !sp_saved_copy(node->volume, sandbox->id, spec->saved_name, NULL, spec->durable, error))
        return false;
    sp_failpoint("snapshot.copied", NULL);
    sp_steps_since(steps, "copy", began);
    return true;
}

static bool begin(struct taking *t, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    if (!sp_failpoint("snapshot.before_begin", error))
        return false;
    t->saving = t->ops->save_begin(t->sandbox->instance, t->spec, error);
    if (!t->saving || !sp_failpoint("snapshot.begun", error))
        return false;
    sp_steps_since(t->steps, "begin", began);
    return sp_sandbox_check_wanted(t->sandbox, error);
}

static bool stand_still(struct taking *t, GError **error)
{
    if (t->ran)
        return sp_still_begin(t->sandbox, SP_STILL_BRIEF | (t->spec->memory ? 0 : SP_STILL_SYNC),
                              error);
    return t->spec->memory || sp_still_sync(t->sandbox, error);
}

static bool capture(struct taking *t, GError **error)
{
    return (!t->spec->memory || !t->ops->memory_wants_no_link ||
            sp_link_hang_up(t->sandbox->link, error)) &&
           sp_failpoint("snapshot.before_capture", error) &&
           t->ops->save_capture(t->saving, error) && sp_failpoint("snapshot.captured", error);
}

/* If that fails the sandbox stays paused; the reconciler sees that and tries again. */
static void go_on(struct taking *t)
{
    g_autoptr(GError) error = NULL;
    if (t->ran && t->sandbox->found.presence == SP_PRESENCE_PAUSED &&
        !sp_sandbox_doomed(t->sandbox) && !sp_still_end(t->sandbox, &error))
        sp_log_error("a sandbox does not go on after a snapshot", error, "sandbox", t->sandbox->id,
                     NULL);
}

static bool finish(struct taking *t, struct sp_saved_result *ret, GError **error)
{
    int64_t began = sp_time_monotonic_us();
    if (!sp_sandbox_check_wanted(t->sandbox, error) ||
        !sp_failpoint("snapshot.before_finish", error) ||
        !t->ops->save_finish(t->saving, ret, sp_steps_add, t->steps, error))
        return false;
    sp_failpoint("snapshot.finished", NULL);
    sp_steps_since(t->steps, "finish", began);
    return true;
}

static bool take_live(struct sp_sandbox *sandbox, const struct sp_save_spec *spec, json_t *steps,
                      struct sp_snapshot_taken *ret, GError **error)
{
    struct sp_driver *driver = sandbox->instance->driver;
    struct taking t = {.sandbox = sandbox,
                       .ops = driver->ops,
                       .spec = spec,
                       .ran = sandbox->found.presence == SP_PRESENCE_RUNNING,
                       .steps = steps};
    struct sp_saved_result result = {0};
    if (!sp_forms_check_tier(driver, spec->memory, error))
        return false;
    bool fine = begin(&t, error);
    if (fine) {
        int64_t began = sp_time_monotonic_us();
        fine = stand_still(&t, error) && capture(&t, error);
        go_on(&t);
        sp_steps_since(steps, "pause", began);
    }
    fine = fine && finish(&t, &result, error);
    if (t.saving)
        t.ops->save_free(t.saving);
    if (fine)
        *ret = (struct sp_snapshot_taken){spec->memory, result.size_bytes};
    return fine;
}

bool sp_snapshot_take(struct sp_sandbox *sandbox, const struct sp_save_spec *spec, json_t *steps,
                      struct sp_snapshot_taken *ret, GError **error)
{
    switch (sandbox->found.presence) {
    case SP_PRESENCE_RUNNING:
    case SP_PRESENCE_PAUSED:
        return take_live(sandbox, spec, steps, ret, error);
    case SP_PRESENCE_SUSPENDED:
        return take_suspended(sandbox, spec, steps, ret, error);
    default:
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "the sandbox does not run");
        return false;
    }
}
