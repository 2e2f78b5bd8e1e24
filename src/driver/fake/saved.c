/*
 * Saved forms of the fake: the process of a suspended sandbox is its memory. It is kept, stopped,
 * and <state>/run/fake/<form>/ says which it is and has a hard link to its socket. The form's
 * manifest and that file have the same mark, so that a copy of another form under the same name is
 * not taken for it.
 *
 * That is for the form of the sandbox's own id only (a suspend). What a snapshot saves is nothing:
 * a sandbox that is made from one with memory starts afresh.
 */
#include "driver/fake/fake_private.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "disk/saved.h"
#include "disk/tree.h"
#include "os/pidfd.h"

#define KEPT_FILE "instance.ini" /* a record, so that its process is found the same way */
#define MARK "mark"
#define KILL_MS 10000

struct fake_saving {
    struct fake *fake;
    char *name;
    bool memory, durable, captured;
    struct sp_saved_staging *staging;
};

static struct fake_driver *driver_of(struct sp_instance *instance)
{
    return (struct fake_driver *)instance->driver;
}

static char *kept_dir(const struct fake_driver *driver, const char *name)
{
    return g_build_filename(driver->env.state_dir, "run", "fake", name, NULL);
}

static struct fake_saving *saving_of(struct sp_saving *saving)
{
    return (struct fake_saving *)(void *)saving;
}

struct sp_saving *sp_fake_save_begin(struct sp_instance *instance, const struct sp_save_spec *spec,
                                     GError **error)
{
    struct sp_saved_staging *staging =
        sp_saved_stage(driver_of(instance)->env.volume, spec->saved_name, 4096, error);
    if (!staging)
        return NULL;
    struct fake_saving *s = g_new0(struct fake_saving, 1);
    s->fake = (struct fake *)instance;
    s->name = g_strdup(spec->saved_name);
    s->memory = spec->memory;
    s->durable = spec->durable;
    s->staging = staging;
    return (struct sp_saving *)(void *)s;
}

bool sp_fake_save_capture(struct sp_saving *saving, GError **error)
{
    struct fake_saving *s = saving_of(saving);
    struct sp_record record = {0};
    if (!sp_record_load(s->fake->run_dir, &record, error))
        return false;
    s->captured = sp_fake_is_stopped(record.pid);
    sp_record_clear(&record);
    if (!s->captured)
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "save_capture() of a sandbox that runs");
    return s->captured;
}

/* Says in run/fake which process the form keeps. */
static bool keep(const struct fake_saving *s, struct sp_record *record, const char *mark,
                 GError **error)
{
    g_autofree char *dir = kept_dir(driver_of(&s->fake->base), s->name);
    g_autofree char *parent = g_path_get_dirname(dir);
    g_autofree char *from = g_build_filename(s->fake->run_dir, FAKE_SOCKET, NULL);
    g_autofree char *to = g_build_filename(dir, FAKE_SOCKET, NULL);
    sp_tree_remove(dir);
    if (g_mkdir_with_parents(dir, 0700) < 0 || link(from, to) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "keeping a process in %s", dir);
        return false;
    }
    g_key_file_set_string(record->extra, FAKE_GROUP, MARK, mark);
    g_key_file_set_string(record->extra, FAKE_GROUP, "run_dir", s->fake->run_dir);
    return sp_record_save(dir, record, error);
}

static bool commit(const struct fake_saving *s, const struct sp_record *record, const char *mark,
                   GError **error)
{
    struct sp_saved_manifest manifest = {
        .format = SP_SAVED_FORMAT,
        .sandbox_id = record->id,
        .tier = record->tier,
        .template_digest = record->template_digest,
        .memory = s->memory,
        .durable = s->durable,
        .cpus = g_key_file_get_double(record->extra, FAKE_GROUP, "cpus", NULL),
        .memory_mb = g_key_file_get_int64(record->extra, FAKE_GROUP, "memory_mb", NULL),
        .disk_mb = g_key_file_get_int64(record->extra, FAKE_GROUP, "disk_mb", NULL),
        .pids = g_key_file_get_int64(record->extra, FAKE_GROUP, "pids", NULL),
        .slot = record->slot,
        .machine = json_pack("{s:s}", MARK, mark),
    };
    bool fine = sp_saved_commit(s->staging, &manifest, error);
    json_decref(manifest.machine);
    return fine;
}

bool sp_fake_save_finish(struct sp_saving *saving, struct sp_saved_result *ret, sp_step_fn step,
                         void *user, GError **error)
{
    struct fake_saving *s = saving_of(saving);
    struct sp_record record = {0};
    char mark[SP_ID_MAX];
    sp_id_new("mark", mark);
    if (!s->captured || !sp_record_load(s->fake->run_dir, &record, error))
        return false;
    bool own = strcmp(s->name, record.id) == 0;
    bool fine =
        (!own || !s->memory || keep(s, &record, mark, error)) && commit(s, &record, mark, error);
    sp_record_clear(&record);
    if (fine)
        *ret = (struct sp_saved_result){.size_bytes = 4096};
    return fine;
}

void sp_fake_save_free(struct sp_saving *saving)
{
    if (!saving)
        return;
    struct fake_saving *s = saving_of(saving);
    sp_saved_staging_free(s->staging);
    g_free(s->name);
    g_free(s);
}

/* What run/fake says of a form, if it is of this very form. */
static bool load_kept(const struct fake_driver *driver, const char *name, struct sp_record *ret)
{
    g_autofree char *dir = kept_dir(driver, name);
    g_autofree char *form = sp_saved_path(driver->env.volume, name);
    struct sp_saved_manifest manifest = {0};
    struct sp_record record = {0};
    if (!sp_record_load(dir, &record, NULL))
        return false;
    g_autofree char *mark = g_key_file_get_string(record.extra, FAKE_GROUP, MARK, NULL);
    bool same = mark && sp_saved_load(form, &manifest, NULL) && manifest.machine &&
                g_strcmp0(mark, json_string_value(json_object_get(manifest.machine, MARK))) == 0;
    sp_saved_manifest_clear(&manifest);
    if (same)
        *ret = record;
    else
        sp_record_clear(&record);
    return same;
}

bool sp_fake_is_kept(const struct fake_driver *driver, const struct sp_record *record)
{
    struct sp_record kept = {0};
    if (!load_kept(driver, record->id, &kept))
        return false;
    bool same = kept.pid == record->pid && kept.pid_start_ticks == record->pid_start_ticks;
    sp_record_clear(&kept);
    return same;
}

/* Ends what is kept under that name, unless a sandbox has it by now. */
static void drop(const struct fake_driver *driver, const char *name)
{
    g_autofree char *dir = kept_dir(driver, name);
    struct sp_record kept = {0}, owner = {0};
    if (sp_record_load(dir, &kept, NULL)) {
        g_autofree char *run_dir = g_key_file_get_string(kept.extra, FAKE_GROUP, "run_dir", NULL);
        bool owned = run_dir && sp_record_load(run_dir, &owner, NULL) && owner.pid == kept.pid &&
                     owner.pid_start_ticks == kept.pid_start_ticks;
        int pidfd = owned ? -1 : sp_record_open_process(&kept, NULL);
        if (pidfd >= 0) {
            sp_pidfd_kill(pidfd, KILL_MS, NULL);
            close(pidfd);
            int launcher = g_key_file_get_integer(kept.extra, FAKE_GROUP, "launcher", NULL);
            if (launcher > 0)
                waitpid(launcher, NULL, 0); /* ECHILD: it was an earlier worker's */
        }
        sp_record_clear(&owner);
        sp_record_clear(&kept);
    }
    sp_tree_remove(dir);
}

void sp_fake_forget_saved(struct sp_driver *base, const char *saved_dir)
{
    g_autofree char *name = g_path_get_basename(saved_dir);
    drop((struct fake_driver *)base, name);
}

bool sp_fake_take_kept(const struct fake_driver *driver, const struct sp_driver_spec *spec,
                       struct sp_record *record, bool *ret_found, GError **error)
{
    g_autofree char *name = spec->saved_dir ? g_path_get_basename(spec->saved_dir) : NULL;
    struct sp_record kept = {0};
    *ret_found = false;
    if (!name || strcmp(name, spec->id) != 0)
        return true;
    if (!load_kept(driver, name, &kept)) {
        drop(driver, name); /* of a form that another has replaced */
        return true;
    }
    *ret_found = true;
    g_autofree char *dir = kept_dir(driver, name);
    g_autofree char *from = g_build_filename(dir, FAKE_SOCKET, NULL);
    g_autofree char *to = g_build_filename(spec->run_dir, FAKE_SOCKET, NULL);
    int pidfd = sp_record_open_process(&kept, error);
    bool fine = pidfd >= 0;
    if (fine && link(from, to) < 0 && errno != EEXIST) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "link %s", to);
        fine = false;
    }
    if (pidfd >= 0)
        close(pidfd);
    if (fine) {
        g_free(record->boot_id);
        record->boot_id = g_strdup(kept.boot_id);
        record->pid = kept.pid;
        record->pid_start_ticks = kept.pid_start_ticks;
        record->started = true;
        g_key_file_set_integer(record->extra, FAKE_GROUP, "launcher",
                               g_key_file_get_integer(kept.extra, FAKE_GROUP, "launcher", NULL));
        fine = sp_record_save(spec->run_dir, record, error) && sp_fake_continue(kept.pid, error);
    }
    sp_record_clear(&kept);
    return fine;
}
