/*
 * The container tier: Linux namespaces around space-agent, without a runtime program.
 *
 * A sandbox is: a cgroup named by its id, a writable layer (disk/layer.h), an overlay root of that
 * layer on the shared image with the ids of its slot, and one process tree in namespaces of its own
 * whose PID 1 is the agent. In the run directory: instance.ini (driver/record.h), agent.sock, and
 * for a moment on kernels before 6.15 the mount point `lower`.
 *
 * This header is private to the folder.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/image.h"
#include "disk/volume.h"
#include "driver/driver.h"
#include "driver/launcher.h"
#include "driver/record.h"
#include "os/cgroup.h"

#define SP_CONTAINER_TIER "container"
#define SP_CONTAINER_SOCKET "agent.sock"
#define SP_CONTAINER_LOWER "lower"
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
};

/* --- plan.c: pure --- */

/* fds of the plan; all but seccomp become the plan's. -1 leaves out cgroup and oom (and in golden
 * tests stands for an fd). */
struct sp_container_fds {
    int root;   /* detached overlay */
    int dev;    /* detached copy of the /dev template */
    int link;   /* listening socket */
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
/* A detached copy; the caller closes. */
int sp_container_dev_clone(const struct sp_container_dev *dev, GError **error);

/* --- root.c --- */

struct sp_container_root {
    const char *image;   /* mount point */
    const char *layer;   /* directory with upper and work */
    const char *run_dir; /* for `lower` */
    int idmap_fd;
    bool attach; /* the lower layer is attached while the overlay is made (before Linux 6.15) */
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

/* --- create.c, destroy.c, link.c, probe.c --- */

struct sp_instance *sp_container_create(struct sp_driver *driver, const struct sp_driver_spec *spec,
                                        sp_step_fn step, void *user, GError **error);
struct sp_instance *sp_container_adopt(struct sp_driver *driver, const char *run_dir,
                                       bool *ret_paused, GError **error);
bool sp_container_destroy(struct sp_driver *driver, const char *run_dir, GError **error);
void sp_container_probe(struct sp_driver *driver, struct sp_tier_status *ret_status);

/* A listening socket at <run_dir>/agent.sock, whatever the length of run_dir. */
int sp_container_listen(const char *run_dir, GError **error);
int sp_container_connect(struct sp_instance *instance, GError **error);
