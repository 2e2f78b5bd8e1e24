/*
 * The steps of making something that runs commands: of a create, a wake, a member of a pool
 * (docs/lifecycle.md §2, docs/pools.md). The caller chooses which it needs, in this order.
 *
 * They know the node, but neither the sandbox table nor its lock, and hold no lock. Each has its
 * own deadline and adds {name, duration_us} to the steps. A failure leaves what is there: run_dir
 * names it for the driver's destroy().
 */
#pragma once

#include "disk/template.h"
#include "node/table.h"

struct sp_making {
    /* Set by the caller; borrowed until sp_making_clear(). */
    struct sp_node *node;
    const char *id;      /* "sbx_…" */
    const char *name;    /* of its resources; NULL: the id */
    const char *run_dir; /* absolute */
    const struct sp_sandbox_spec *spec;
    unsigned slot;
    int *slot_at; /* where the owner keeps it, guarded by the table's lock: follows when the driver
                     takes a VMM that was started ahead, which has a slot of its own */
    const char *saved_dir; /* NULL: from the template */
    enum sp_saved_use saved_use;
    json_t *steps;           /* array; NULL: nobody wants to know */
    void (*on_gone)(void *); /* of the link: struct sp_link_spec */
    void *gone_user;
    int64_t identity_ms; /* limit of sp_making_identity(); 0: that of a create */

    /* Set by the steps. The caller takes over instance and link, also after a failure. */
    struct sp_driver *driver;
    struct sp_instance *instance;
    struct sp_link *link;
    char *template_dir;
    struct sp_template_config config;
};

/* Finds the driver and reads the template. First, and needed by all others but dirs(). */
bool sp_making_template(struct sp_making *making, GError **error);
/* Makes run_dir and what the worker has in it. */
bool sp_making_dirs(struct sp_making *making, GError **error);
/* prepare() and create() of the driver. */
bool sp_making_instance(struct sp_making *making, GError **error);
/* Starts the link and waits for the agent. */
bool sp_making_link(struct sp_making *making, GError **error);
/* Clock, entropy, names, environment, limits: IDENTITY. The names are those of the id and the spec;
 * may be called again on the same link for another id and spec. */
bool sp_making_identity(struct sp_making *making, GError **error);
/* Runs the template's ready command, or with plain (or where it has none) a command that every
 * sandbox has, as the user that commands will run as, and waits for its success. */
bool sp_making_ready(struct sp_making *making, bool plain, GError **error);
/* The file "ready" in the run directory: it has run a command once. Without it a restarted worker
 * makes the sandbox anew. */
bool sp_making_mark(struct sp_making *making, GError **error);

/* Adds a step to the steps. */
void sp_making_step(struct sp_making *making, const char *name, int64_t duration_us);
/* Frees what the caller has not taken over, but for instance and link. */
void sp_making_clear(struct sp_making *making);

/* Starts the link of an instance that runs; all strings are borrowed for the call. */
struct sp_link *sp_making_start_link(const char *id, struct sp_instance *instance,
                                     void (*on_gone)(void *), void *gone_user, GError **error);
