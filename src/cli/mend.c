#include "cli/mend.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/up.h"
#include "disk/btrfs.h"
#include "disk/layer.h"
#include "disk/saved.h"
#include "disk/tree.h"
#include "disk/volume.h"
#include "os/cgroup.h"
#include "os/mount.h"

#define GROUP_TIMEOUT_MS 5000

struct mender {
    const struct sp_facts *facts;
    struct sp_volume *volume; /* opened at first use */
};

static struct sp_volume *volume_of(struct mender *m, GError **error)
{
    if (!m->volume)
        m->volume = sp_volume_open(m->facts->state_dir, 0, error);
    return m->volume;
}

static bool fail(GError **error, const char *path)
{
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "cannot remove %s", path);
    return false;
}

static bool mend_cgroup(struct mender *m, const struct sp_thing *thing, GError **error)
{
    g_autofree char *root = sp_up_cgroup_root(m->facts->state_dir);
    SP_CLEANUP(sp_cgroups_free_p) struct sp_cgroups *cgroups = sp_cgroups_open(NULL, root, error);
    if (!cgroups)
        return false;
    SP_CLEANUP(sp_cgroup_free_p) struct sp_cgroup *group = sp_cgroup_new(cgroups, thing->name);
    return sp_cgroup_kill(group, GROUP_TIMEOUT_MS, error) &&
           sp_cgroup_remove(group, GROUP_TIMEOUT_MS, error);
}

static bool mend_layer(struct mender *m, const struct sp_thing *thing, GError **error)
{
    struct stat st;
    if (lstat(thing->path, &st) != 0)
        return errno == ENOENT || fail(error, thing->path);
    if (!S_ISDIR(st.st_mode)) /* the disk or memory of a microVM */
        return unlink(thing->path) == 0 || errno == ENOENT || fail(error, thing->path);
    struct sp_volume *volume = volume_of(m, error);
    return volume && sp_layer_destroy(volume, thing->name, error);
}

/* A half-made saved form may hold a subvolume of that name (docs/saved-format.md). */
static void drop_subvolume(const char *path)
{
    SP_CLEANUP(sp_close_fdp) int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0)
        sp_btrfs_subvolume_destroy(fd, "layer");
}

static bool mend_tmp(const struct sp_thing *thing, GError **error)
{
    drop_subvolume(thing->path);
    return sp_tree_remove(thing->path) == 0 || fail(error, thing->path);
}

static bool mend_one(struct mender *m, const struct sp_thing *thing, GError **error)
{
    switch (thing->kind) {
    case SP_THING_MOUNT:
        return sp_mount_detach(thing->path, error);
    case SP_THING_CGROUP:
        return mend_cgroup(m, thing, error);
    case SP_THING_LAYER:
        return mend_layer(m, thing, error);
    case SP_THING_SAVED: {
        struct sp_volume *volume = volume_of(m, error);
        return volume && sp_saved_remove(volume, thing->name, error);
    }
    case SP_THING_TMP:
        return mend_tmp(thing, error);
    case SP_THING_RUN:
        return sp_tree_remove(thing->path) == 0 || fail(error, thing->path);
    case SP_N_THING_KINDS:
        break;
    }
    g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL, "no such kind");
    return false;
}

bool sp_mend_all(const struct sp_facts *facts, GPtrArray *findings)
{
    struct mender m = {.facts = facts};
    bool all = true;
    for (guint i = 0; i < findings->len; i++) {
        struct sp_finding *finding = findings->pdata[i];
        g_autoptr(GError) error = NULL;
        finding->mended = !finding->hint && finding->thing && mend_one(&m, finding->thing, &error);
        if (error)
            finding->hint = g_strdup(error->message);
        all = all && finding->mended;
    }
    sp_volume_close(m.volume);
    return all;
}
