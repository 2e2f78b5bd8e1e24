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

/* Why create() is given a saved form. */
enum sp_saved_use {
    SP_SAVED_WAKE, /* the same sandbox goes on; nobody else starts from this form */
    SP_SAVED_COPY, /* one of many: what copies can share is shared */
};

/* What create() is to make. Everything is borrowed for the call. */
struct sp_driver_spec {
    const char *id;              /* "sbx_…", checked */
    const char *name;            /* of its resources (control group, layer, disk); NULL: the id. It
                                    stays when claim() gives the instance to a sandbox */
    const char *run_dir;         /* exists, mode 0700, holds the record, sockets, logs */
    const char *template_dir;    /* holds image.erofs and config.json (docs/templates.md) */
    const char *template_digest; /* "sha256:…" */
    unsigned slot;               /* this sandbox's block of uids: base/limits.h */
    const char *hostname;
    struct sp_shape shape;
    /* NULL: from the template. Else the directory of a whole saved form (disk/saved.h), which create()
     * only reads. One with memory goes on where it was; one without starts afresh on its disk. */
    const char *saved_dir;
    enum sp_saved_use saved_use;
};

/* What is to be saved. Borrowed for the calls from save_begin() to save_free(). */
struct sp_save_spec {
    const char *saved_name; /* in the volume's saved/: sandbox or snapshot id */
    bool memory;            /* false: the disk only */
    bool durable;           /* false: need not survive a crash of the host (a fork's own form) */
};
struct sp_saving; /* one saving under way; a driver embeds it */

struct sp_saved_result {
    int64_t size_bytes; /* that the form added to the volume, as well as can be told */
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
     * Any other error: not known; try again later, destroy nothing. *ret_paused: pause() is in
     * force; ret_paused may be NULL. */
    struct sp_instance *(*adopt)(struct sp_driver *driver, const char *run_dir, bool *ret_paused,
                                 GError **error);

    /* Removes everything the record names: processes first (waited for), then network, mounts,
     * cgroup, disk. Idempotent; true when nothing is left. Does not remove run_dir itself. */
    bool (*destroy)(struct sp_driver *driver, const char *run_dir, GError **error);

    /* A new connection to the agent (docs/agent-protocol.md): a non-blocking, close-on-exec stream
     * socket that the caller closes; -1 on failure. At most one at a time. Waits at most 5 s. */
    int (*connect_agent)(struct sp_instance *instance, GError **error);

    /* pidfd of the sandbox's first host process (agent or VMM): readable when it has ended.
     * Borrowed. */
    int (*pidfd)(struct sp_instance *instance);
    /* Whose block of uids it really has: after create() that may be the slot of a prestart() that was
     * taken instead of the spec's, which is then free. G_MAXUINT: not known. NULL: always the spec's. */
    unsigned (*slot)(struct sp_instance *instance);

    /* --- pause: execution stops, memory stays. Both idempotent; on failure the instance is as
     * before, as far as that is possible. Where agent_holds is set the caller has sent HOLD before
     * pause() and sends RELEASE after resume(). At most 5 s. */
    bool (*pause)(struct sp_instance *instance, GError **error);
    bool (*resume)(struct sp_instance *instance, GError **error);

    /* --- saving. The order is begin (the sandbox runs; slow: what can be copied ahead is, and the
     * space is reserved), pause(), capture (short: the sandbox stands still), perhaps resume(),
     * finish (slow: it may run again), free. Only finish() makes the form appear, whole and, if asked,
     * durable; free() without a finish leaves nothing. begin() may also be called while paused. */

    /* Whether memory can be saved here; found by trial like probe(). *ret_reason (owned, may be NULL)
     * says why not, and what to do. NULL: always possible. */
    bool (*can_save_memory)(struct sp_driver *driver, char **ret_reason);
    struct sp_saving *(*save_begin)(struct sp_instance *instance, const struct sp_save_spec *spec,
                                    GError **error);
    bool (*save_capture)(struct sp_saving *saving, GError **error);
    bool (*save_finish)(struct sp_saving *saving, struct sp_saved_result *ret, sp_step_fn step,
                        void *user, GError **error);
    void (*save_free)(struct sp_saving *saving); /* NULL is fine */
    /* Lets go of what is kept in memory for a saved form that is about to be removed. NULL: nothing. */
    void (*forget_saved)(struct sp_driver *driver, const char *saved_dir);
    /* The saved form can go on with memory here and now: SP_ERROR_FAILED_PRECONDITION says why not
     * (another QEMU, CPU, …). Reads the manifest only. NULL: always. */
    bool (*check_saved)(struct sp_driver *driver, const char *saved_dir, GError **error);

    /* --- pools. A pool's member becomes a sandbox: the run directory is renamed, record and instance
     * name the new id, the host name is set where the host sets it. Short; atomic by the rename. */
    bool (*claim)(struct sp_instance *instance, const char *id, const char *run_dir,
                  const char *hostname, GError **error);
    /* Starts what create() would have to wait for (a VMM that waits for a state), for a create() with
     * the same template, shape and any saved form: see the driver's own documentation. NULL: there is
     * nothing to start ahead. */
    bool (*prestart)(struct sp_driver *driver, const struct sp_driver_spec *spec, GError **error);
    /* Takes the one of this run directory back: no create() can take it any more, and what is there
     * is for destroy(). False: there is none, or a create() has it. Does not block. */
    bool (*end_prestarted)(struct sp_driver *driver, const char *run_dir);
    /* How many of them wait for such a create(). */
    unsigned (*prestarted)(struct sp_driver *driver, const char *template_digest,
                           const struct sp_shape *shape);

    /* HOLD and RELEASE frame a pause() or a capture (docs/agent-protocol.md §3): the user's processes
     * stand still inside before the machine does. */
    bool agent_holds;

    /* save_capture() with memory needs that nobody is connected to the agent: the caller closes its
     * connection after pause() and connects again after resume(). */
    bool memory_wants_no_link;

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
