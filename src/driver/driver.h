/*
 * What a worker asks of an isolation tier. One implementation a folder: container/, microvm/,
 * fake/.
 *
 * All calls block and have their own deadlines; they may be made from several threads at once, but
 * for one sandbox only from one thread at a time. A driver keeps nothing in memory that it could
 * not read again from the run directory: facts are recorded (driver/record.h) *before* the resource
 * they name is made, so that destroy() after a crash at any point removes everything and adopt()
 * takes over exactly what still runs.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/program.h"

struct sp_driver;
struct sp_instance;

/* What a sandbox may use; positive, checked by the API against its limits. */
struct sp_shape {
    double cpus;
    int64_t memory_mb;
    int64_t disk_mb;
    int64_t pids;
};

/* What create() is to make. Everything is borrowed for the call. */
struct sp_driver_spec {
    const char *id;              /* "sbx_…", checked */
    const char *run_dir;         /* exists, mode 0700, holds the record, sockets, logs */
    const char *template_dir;    /* holds image.erofs and config.json (docs/templates.md) */
    const char *template_digest; /* "sha256:…" */
    unsigned slot;               /* this sandbox's block of uids: base/limits.h */
    const char *hostname;
    struct sp_shape shape;
};

/* How long a step of an operation took; goes into the operation record. */
typedef void (*sp_step_fn)(void *user, const char *step, int64_t duration_us);

struct sp_tier_status {
    bool available;
    char *detail; /* owned: the variant ("tcg", "kvm", "cgroup v2") or the reason why not */
};

struct sp_driver_ops {
    const char *tier; /* "container", "microvm" */

    /* Finds out by trial whether the tier works here. At most 20 s; the result may be cached by the
     * driver for this boot. Never fails: an impossible tier is a status. */
    void (*probe)(struct sp_driver *driver, struct sp_tier_status *ret_status);

    /* Makes whatever create() needs once per template and shape (the boot image of a microVM) if it
     * is not there yet. Idempotent; concurrent calls for the same thing do the work once. Minutes.
     */
    bool (*prepare)(struct sp_driver *driver, const char *template_dir,
                    const struct sp_shape *shape, sp_progress_fn progress, void *user,
                    GError **error);

    /* Lets go of what prepare() and create() keep for a template (a mount, open boot images), which
     * is about to be removed and which no sandbox uses. On failure it should stay. NULL: nothing is
     * kept. */
    bool (*forget_template)(struct sp_driver *driver, const char *template_dir, GError **error);

    /* Makes and starts the sandbox: when it returns, connect_agent() works. On failure nothing is
     * left. The caller frees the instance with instance_free(). step may be NULL. */
    struct sp_instance *(*create)(struct sp_driver *driver, const struct sp_driver_spec *spec,
                                  sp_step_fn step, void *user, GError **error);

    /* Takes over a sandbox of an earlier worker from its run directory. SP_ERROR_NOT_FOUND: there
     * is positive evidence that it does not run any more (or never fully came to be): destroy() it.
     * Any other error: not known; try again later, destroy nothing. */
    struct sp_instance *(*adopt)(struct sp_driver *driver, const char *run_dir, GError **error);

    /* Removes everything the record names: processes first (waited for), then network, mounts,
     * cgroup, disk. Idempotent; true when nothing is left. Does not remove run_dir itself. */
    bool (*destroy)(struct sp_driver *driver, const char *run_dir, GError **error);

    /* A new connection to the agent (docs/agent-protocol.md): a non-blocking, close-on-exec stream
     * socket that the caller closes; -1 on failure. At most one at a time. Waits at most 5 s. */
    int (*connect_agent)(struct sp_instance *instance, GError **error);

    /* pidfd of the sandbox's first host process (agent or VMM): readable when it has ended.
     * Borrowed. */
    int (*pidfd)(struct sp_instance *instance);

    /* What the IDENTITY frame must carry for this tier after create(): 0 / false in the container.
     */
    bool needs_clock_and_entropy;
    /* The pids limit is the agent's to set (microVM) rather than the host's. */
    bool agent_sets_pids;
    /* Largest EVENT data for this tier's link (HELLO max_event_data), bytes. */
    uint32_t max_event_data;

    /* A command that every sandbox of the tier has and that needs no more than a process: run as
     * the proof of readiness where the template has no `ready` of its own. NULL: /bin/true. */
    const char *const *ready_command;

    /* Forgets the handle; the sandbox goes on running. */
    void (*instance_free)(struct sp_instance *instance);
    void (*driver_free)(struct sp_driver *driver);
};

/* The agent's own file in every real sandbox, and what it does with this option: nothing,
 * successfully. */
#define SP_READY_COMMAND ((const char *const[]){"/dev/.space/agent", "--ready", NULL})

/* Common first member of every driver's own struct. */
struct sp_driver {
    const struct sp_driver_ops *ops;
};
struct sp_instance {
    struct sp_driver *driver;
};

struct sp_launcher;
struct sp_volume;

/* Paths and services that drivers are made with; borrowed, outlives them. */
struct sp_driver_env {
    const char *state_dir;        /* absolute */
    const char *cgroup_root;      /* name of this installation's group, e.g. "space-1a2b3c4d" */
    const char *agent_path;       /* the static space-agent */
    const char *guest_dir;        /* vmlinux and modules for the microVM (docs/guest-kernel.md) */
    struct sp_launcher *launcher; /* driver/launcher.h */
    struct sp_volume *volume;     /* disk/volume.h: where templates and writable layers live */
};

struct sp_driver *sp_driver_container_new(const struct sp_driver_env *env, GError **error);
struct sp_driver *sp_driver_microvm_new(const struct sp_driver_env *env, GError **error);
