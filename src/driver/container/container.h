/*
 * The container tier: Linux namespaces around space-agent, without a runtime program.
 *
 * A sandbox is: a cgroup and a writable layer (disk/layer.h), both named by its id or, when it came
 * from a pool, by the name it was made under; an overlay root of that layer on the shared image
 * with the ids of its slot; and one process tree in namespaces of its own whose PID 1 is the agent.
 * In the run directory: instance.ini (driver/record.h), and for a moment on kernels before 6.15 the
 * mount points `lower` and `upper`. docs/container.md tells the whole.
 *
 * This header is private to the folder.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/image.h"
#include "disk/saved.h"
#include "disk/volume.h"
#include "driver/driver.h"
#include "driver/launcher.h"
#include "driver/record.h"
#include "os/cgroup.h"

#define SP_CONTAINER_TIER "container"
#define SP_CONTAINER_LINK_DIR "/dev/.space/link" /* inside */
#define SP_CONTAINER_SOCKET "agent"
#define SP_CONTAINER_LOWER "lower"
#define SP_CONTAINER_UPPER "upper"
/* In a saved form (disk/saved.h). */
#define SP_CONTAINER_SAVED_LAYER "layer"
#define SP_CONTAINER_AGENT "/dev/.space/agent"
/* Longest wait for killed processes and for the kernel to release a cgroup. */
#define SP_CONTAINER_END_MS 10000
#define SP_CONTAINER_IDMAPS 64

struct sp_container_dev;

struct sp_container_driver {
    struct sp_driver base;
    struct sp_driver_env env; /* borrowed pointers, as given */
    struct sp_images *images;
    /* Guards the members below, which are made at first use. Held while they are made. */
    GMutex lock;
    struct sp_cgroups *cgroups;
    struct sp_container_dev *dev;
    int seccomp_fd;
    gint layers_need_attach; /* atomic; found out: this kernel takes attached overlay layers only */
    /* criu_trial.c. finished: reason says why not, or is NULL. */
    struct {
        GMutex lock; /* guards all; taken last */
        GCond done;
        GThread *thread;
        char *candidate, *reason;
        bool begun, finished;
    } trial;
    /* User namespaces for idmapped mounts; slot % SP_CONTAINER_IDMAPS is the place. */
    struct {
        unsigned slot;
        int fd; /* -1: empty */
    } idmaps[SP_CONTAINER_IDMAPS];
};

struct sp_container {
    struct sp_instance base;
    char *run_dir;
    int pidfd;
    struct sp_record record; /* as in run_dir */
    gint dumping;            /* atomic: CRIU is at work, nobody may connect to the agent */
};

/* --- plan.c: pure --- */

/* fds of the plan; all but seccomp become the plan's. -1 leaves out cgroup and oom (and in golden
 * tests stands for an fd). */
struct sp_container_fds {
    int root;   /* detached overlay */
    int dev;    /* detached copy of the /dev template */
    int cgroup; /* detached cgroup2 mount */
    int oom;
    int seccomp; /* borrowed */
    bool has_cgroup;
};
struct sp_plan *sp_container_plan(const struct sp_driver_spec *spec,
                                  const struct sp_container_fds *fds, uint64_t nofile_hard);
/* The steps of namespaces and privileges only, on an empty root: what probe() tries out. */
struct sp_plan *sp_container_probe_plan(const struct sp_container_fds *fds);

/* --- dev.c --- */

/* The read-only /dev that all sandboxes share: device nodes, links, mount points, the agent.
 * Without `attached` it is a detached mount that ends with this process; copies of such need
 * Linux 6.15. With it, it is attached at <state>/run/container-dev until it is freed. */
struct sp_container_dev *sp_container_dev_new(const char *state_dir, const char *agent_path,
                                              bool attached, GError **error);
void sp_container_dev_free(struct sp_container_dev *dev);
/* The mount itself, detached, which the caller then owns; frees dev, which is not attached. */
int sp_container_dev_take(struct sp_container_dev *dev);
/* A detached copy; the caller closes. */
int sp_container_dev_clone(const struct sp_container_dev *dev, GError **error);

/* --- root.c --- */

struct sp_container_root {
    const char *image;   /* mount point */
    const char *layer;   /* directory with upper and work */
    const char *run_dir; /* for `lower` and `upper` */
    int idmap_fd;
    bool map_layer; /* the layer holds the ids of inside (sp_layer_is_mapped) */
    bool attach;    /* the layers are attached while the overlay is made (before Linux 6.15) */
};
/* The overlay root as a detached mount. Its options, which the sandbox can read in mountinfo, hold
 * no path of the host. -1 on failure. */
int sp_container_root_new(const struct sp_container_root *root, GError **error);

/* --- parts.c: what is made at first use --- */

/* Borrowed from the driver; thread-safe. */
struct sp_cgroups *sp_container_cgroups(struct sp_container_driver *driver, GError **error);
int sp_container_seccomp(struct sp_container_driver *driver, GError **error);
/* The caller closes. */
int sp_container_clone_dev(struct sp_container_driver *driver, GError **error);
int sp_container_idmap(struct sp_container_driver *driver, unsigned slot, GError **error);
void sp_container_parts_clear(struct sp_container_driver *driver);

/* --- facts.c: the driver's own group in the record --- */

/* Name of the layer; free with g_free(). */
char *sp_container_layer_name(const struct sp_record *record);
void sp_container_set_facts(struct sp_record *record, const char *layer,
                            const struct sp_shape *shape);
/* Zeros for an old record. */
struct sp_shape sp_container_shape(const struct sp_record *record);

/* --- instance.c --- */

/* Takes over pidfd and the content of record. */
struct sp_container *sp_container_instance_new(struct sp_driver *driver, const char *run_dir,
                                               int pidfd, struct sp_record *record);
void sp_container_instance_free(struct sp_instance *instance);
/* The caller frees the handle; NULL when the host's cgroups cannot be used. */
struct sp_cgroup *sp_container_cgroup(const struct sp_container *container, GError **error);
bool sp_container_pause(struct sp_instance *instance, GError **error);
bool sp_container_resume(struct sp_instance *instance, GError **error);
bool sp_container_claim(struct sp_instance *instance, const char *id, const char *run_dir,
                        const char *hostname, GError **error);

/* --- save.c --- */

bool sp_container_can_save_memory(struct sp_driver *driver, char **ret_reason);
struct sp_saving *sp_container_save_begin(struct sp_instance *instance,
                                          const struct sp_save_spec *spec, GError **error);
bool sp_container_save_capture(struct sp_saving *saving, GError **error);
bool sp_container_save_finish(struct sp_saving *saving, struct sp_saved_result *ret,
                              sp_step_fn step, void *user, GError **error);
void sp_container_save_free(struct sp_saving *saving);
bool sp_container_check_saved(struct sp_driver *driver, const char *saved_dir, GError **error);
/* Whether create() can use a form so, of which manifest is. SP_ERROR_FAILED_PRECONDITION,
 * SP_ERROR_UNSUPPORTED. */
bool sp_container_check_form(struct sp_driver *driver, const struct sp_saved_manifest *manifest,
                             enum sp_saved_use use, unsigned slot, GError **error);

/* --- create.c, destroy.c, link.c, probe.c --- */

struct sp_instance *sp_container_create(struct sp_driver *driver, const struct sp_driver_spec *spec,
                                        sp_step_fn step, void *user, GError **error);
struct sp_instance *sp_container_adopt(struct sp_driver *driver, const char *run_dir,
                                       bool *ret_paused, GError **error);
bool sp_container_destroy(struct sp_driver *driver, const char *run_dir, GError **error);
void sp_container_probe(struct sp_driver *driver, struct sp_tier_status *ret_status);

int sp_container_connect(struct sp_instance *instance, GError **error);
