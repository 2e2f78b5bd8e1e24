#include "cli/inspect.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "cli/up.h"
#include "driver/record.h"
#include "os/cgroup.h"
#include "os/file_lock.h"

#define SUSPENDED_FILE "suspended"
#define MAX_RECORD_BYTES (256 * 1024)

static const char *const kind_names[SP_N_THING_KINDS] = {
    [SP_THING_MOUNT] = "mount",      [SP_THING_CGROUP] = "cgroup", [SP_THING_LAYER] = "layer",
    [SP_THING_SAVED] = "saved form", [SP_THING_TMP] = "tmp",       [SP_THING_RUN] = "run directory",
};

const char *sp_thing_kind_name(enum sp_thing_kind kind)
{
    return kind_names[kind];
}

static void free_thing(void *data)
{
    struct sp_thing *thing = data;
    g_free(thing->name);
    g_free(thing->owner);
    g_free(thing->path);
    g_free(thing);
}

static void free_owner(void *data)
{
    struct sp_owner *owner = data;
    g_free(owner->dir);
    g_free(owner->path);
    g_free(owner->text);
    g_free(owner->id);
    g_free(owner->cgroup);
    g_free(owner);
}

struct sp_facts *sp_facts_new(const char *state_dir)
{
    struct sp_facts *facts = g_new0(struct sp_facts, 1);
    facts->state_dir = g_strdup(state_dir);
    facts->things = g_ptr_array_new_with_free_func(free_thing);
    facts->owners = g_ptr_array_new_with_free_func(free_owner);
    facts->locks[0] = facts->locks[1] = -1;
    return facts;
}

void sp_facts_free(struct sp_facts *facts)
{
    if (!facts)
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(facts->locks); i++) {
        if (facts->locks[i] >= 0)
            close(facts->locks[i]);
    }
    g_ptr_array_unref(facts->things);
    g_ptr_array_unref(facts->owners);
    g_free(facts->state_dir);
    g_free(facts->server_detail);
    g_free(facts->worker_detail);
    json_decref(facts->sandboxes);
    json_decref(facts->snapshots);
    json_decref(facts->known);
    json_decref(facts->inventory);
    g_free(facts);
}

/* -1 when it is not there (any more). */
static int64_t age_ms_of(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return -1;
    int64_t changed_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
    return MAX(0, sp_time_now_ms() - changed_ms);
}

struct sp_thing *sp_facts_add_thing(struct sp_facts *facts, enum sp_thing_kind kind,
                                    const char *name, const char *path)
{
    struct sp_thing *thing = g_new0(struct sp_thing, 1);
    thing->kind = kind;
    thing->name = g_strdup(name);
    thing->owner = g_strndup(name, strcspn(name, ".")); /* "sbx_….disk" */
    thing->path = g_strdup(path);
    thing->age_ms = -1;
    g_ptr_array_add(facts->things, thing);
    return thing;
}

struct sp_owner *sp_facts_add_owner(struct sp_facts *facts, const char *dir, const char *path)
{
    struct sp_owner *owner = g_new0(struct sp_owner, 1);
    owner->dir = g_strdup(dir);
    owner->path = g_strdup(path);
    owner->slot = -1;
    owner->age_ms = -1;
    g_ptr_array_add(facts->owners, owner);
    return owner;
}

static void list_folder(struct sp_facts *facts, enum sp_thing_kind kind, const char *folder)
{
    g_autofree char *dir_path = g_build_filename(facts->state_dir, folder, NULL);
    g_autoptr(GDir) dir = g_dir_open(dir_path, 0, NULL);
    for (const char *name; dir && (name = g_dir_read_name(dir));) {
        if (name[0] == '.')
            continue; /* locks */
        g_autofree char *path = g_build_filename(dir_path, name, NULL);
        struct sp_thing *thing = sp_facts_add_thing(facts, kind, name, path);
        thing->age_ms = age_ms_of(path);
    }
}

/* Directories of a group, whatever the hierarchy: the first one that is there tells its age. */
static int64_t group_age_ms(const char *root, const char *name)
{
    static const char *const tops[] = {"", "unified", "memory", "pids", "freezer"};
    for (size_t i = 0; i < G_N_ELEMENTS(tops); i++) {
        g_autofree char *path = g_build_filename("/sys/fs/cgroup", tops[i], root, name, NULL);
        int64_t age_ms = age_ms_of(path);
        if (age_ms >= 0)
            return age_ms;
    }
    return -1;
}

static void list_cgroups(struct sp_facts *facts)
{
    g_autofree char *root = sp_up_cgroup_root(facts->state_dir);
    SP_CLEANUP(sp_cgroups_free_p) struct sp_cgroups *cgroups = sp_cgroups_open(NULL, root, NULL);
    g_auto(GStrv) names = cgroups ? sp_cgroups_list(cgroups) : NULL;
    for (char **name = names; name && *name; name++) {
        struct sp_thing *thing = sp_facts_add_thing(facts, SP_THING_CGROUP, *name, NULL);
        thing->age_ms = group_age_ms(root, *name);
        SP_CLEANUP(sp_cgroup_free_p) struct sp_cgroup *group = sp_cgroup_new(cgroups, *name);
        struct sp_cgroup_usage usage = {0};
        thing->busy = sp_cgroup_usage(group, &usage, NULL) && usage.pids > 0;
    }
}

/* Mounts in the directories of single sandboxes: "<folder>/<name>[/…]" (proc_pid_mountinfo(5),
 * field 5; an installation's path has no characters that are escaped there, or its mounts are not
 * seen). */
static void list_mounts(struct sp_facts *facts)
{
    static const char *const folders[] = {"run/sandboxes", "run/pool", "data/layers"};
    g_autofree char *text = NULL;
    if (!g_file_get_contents("/proc/self/mountinfo", &text, NULL, NULL))
        return;
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; *line; line++) {
        g_auto(GStrv) fields = g_strsplit(*line, " ", 6);
        if (g_strv_length(fields) < 5)
            continue;
        for (size_t i = 0; i < G_N_ELEMENTS(folders); i++) {
            g_autofree char *prefix = g_strdup_printf("%s/%s/", facts->state_dir, folders[i]);
            if (!g_str_has_prefix(fields[4], prefix))
                continue;
            const char *rest = fields[4] + strlen(prefix);
            g_autofree char *name = g_strndup(rest, strcspn(rest, "/"));
            sp_facts_add_thing(facts, SP_THING_MOUNT, name, fields[4]);
        }
    }
}

static void read_record(struct sp_owner *owner)
{
    g_autofree char *file = g_build_filename(owner->path, SP_RECORD_FILE, NULL);
    struct stat st;
    struct sp_record record = {0};
    if (stat(file, &st) != 0 || st.st_size > MAX_RECORD_BYTES ||
        !g_file_get_contents(file, &owner->text, NULL, NULL))
        return;
    if (!sp_record_load(owner->path, &record, NULL))
        return;
    owner->id = g_strdup(record.id);
    owner->cgroup = g_strdup(record.cgroup);
    owner->slot = record.slot;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_close_fdp)
    int pidfd = record.pid ? sp_record_open_process(&record, &error) : -1;
    owner->process_gone =
        pidfd < 0 && (!record.pid || g_error_matches(error, SP_ERROR, SP_ERROR_NOT_FOUND));
    sp_record_clear(&record);
}

static void list_owners(struct sp_facts *facts, const char *folder, bool pool)
{
    g_autofree char *dir_path = g_build_filename(facts->state_dir, folder, NULL);
    g_autoptr(GDir) dir = g_dir_open(dir_path, 0, NULL);
    for (const char *name; dir && (name = g_dir_read_name(dir));) {
        g_autofree char *path = g_build_filename(dir_path, name, NULL);
        g_autofree char *suspended = g_build_filename(path, SUSPENDED_FILE, NULL);
        struct sp_owner *owner = sp_facts_add_owner(facts, name, path);
        owner->pool = pool;
        owner->age_ms = age_ms_of(path);
        owner->suspended = access(suspended, F_OK) == 0;
        read_record(owner);
    }
}

/* What was taken away while we looked is no finding. */
static void drop_vanished(struct sp_facts *facts)
{
    for (guint i = facts->things->len; i-- > 0;) {
        struct sp_thing *thing = facts->things->pdata[i];
        if (thing->path && age_ms_of(thing->path) < 0)
            g_ptr_array_remove_index(facts->things, i);
    }
}

static void take_locks(struct sp_facts *facts)
{
    static const char *const names[] = {"server.lock", "worker.lock"};
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename(facts->state_dir, names[i], NULL);
        facts->locks[i] = sp_file_lock(path, 0, NULL);
        facts->daemons_run = facts->daemons_run || facts->locks[i] < 0;
    }
    /* One that runs alone must not keep the other from starting. */
    for (size_t i = 0; i < G_N_ELEMENTS(names) && facts->daemons_run; i++) {
        if (facts->locks[i] >= 0)
            close(facts->locks[i]);
        facts->locks[i] = -1;
    }
}

struct sp_facts *sp_facts_gather(const char *state_dir, GError **error)
{
    g_autofree char *key = g_build_filename(state_dir, "node.key", NULL);
    if (access(key, R_OK) != 0) {
        sp_error_set_errno(error, errno == ENOENT ? SP_ERROR_NOT_FOUND : SP_ERROR_PERMISSION_DENIED,
                           errno, "%s", key);
        return NULL;
    }
    struct sp_facts *facts = sp_facts_new(state_dir);
    take_locks(facts);
    /* Things before owners: what is made meanwhile is not seen without its owner. */
    list_mounts(facts);
    list_cgroups(facts);
    list_folder(facts, SP_THING_LAYER, "data/layers");
    list_folder(facts, SP_THING_SAVED, "data/saved");
    list_folder(facts, SP_THING_TMP, "data/tmp");
    list_owners(facts, "run/sandboxes", false);
    list_owners(facts, "run/pool", true);
    drop_vanished(facts);
    return facts;
}
