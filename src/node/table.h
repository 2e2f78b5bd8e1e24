/*
 * The sandboxes of this node: what is wanted of each and what is there.
 *
 * One struct with one lock owns all of it. Lock order: this lock, then that of the sessions, then
 * that of a link or an outbox; none is held across I/O. At most one action runs for a sandbox
 * (`busy`); it alone touches the run directory and changes driver, instance and link.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>

#include "base/ids.h"
#include "driver/driver.h"
#include "model/decide.h"
#include "node/brake.h"
#include "node/link.h"
#include "node/node.h"
#include "node/slots.h"

/* What a sandbox is to be made of; immutable, counted. */
struct sp_sandbox_spec {
    gint refs;
    char *template_digest, *isolation, *hostname, *user;
    char **env;       /* strv "K=V" */
    char *saved_from; /* id of the snapshot it is made from; NULL: from the template */
    struct sp_shape shape;
};

struct sp_sandbox {
    gint refs;
    struct sp_node *node;
    char id[SP_ID_MAX];
    char *run_dir;

    /* Guarded by the table's lock. */
    struct sp_wanted wanted;
    struct sp_sandbox_spec *spec; /* NULL: not listed yet */
    struct sp_found found;
    bool want_memory;        /* with desired suspended */
    char *rollback_snapshot; /* of wanted.rollback_generation */
    bool found_at_start;
    int64_t pending_generation; /* of the report that waits in the outbox; 0: none */
    bool busy;                  /* an action runs or is queued for it */
    enum sp_action action;      /* that one; NONE: its snapshots are seen to */
    bool gone;                  /* the link saw the process end; reset with a new link */
    bool dropped;               /* taken out of the table */
    int64_t retry_at_ms;        /* monotonic; 0: no retry is due */
    int retry_ms;               /* the last pause */
    int slot;                   /* -1: none */
    struct sp_driver *driver;
    struct sp_instance *instance;
    struct sp_link *link;           /* a reference; set once it can be used */
    char *user, *workdir;           /* defaults of its commands */
    char *fail_code, *fail_message; /* of failed_generation */
    char *lost_reason;              /* why it is ENDED, when that is not the end of its process */
    json_t *carried_steps;          /* of an action that the next one goes on with; may be NULL */
};

struct sp_table {
    GMutex lock;
    GHashTable *by_id; /* id → struct sp_sandbox *, a reference each */
    struct sp_slots slots;
    struct sp_brake brake;
};

struct sp_table *sp_table_new(void);
void sp_table_free(struct sp_table *table);

struct sp_sandbox *sp_sandbox_ref(struct sp_sandbox *sandbox);
void sp_sandbox_unref(struct sp_sandbox *sandbox);
struct sp_sandbox_spec *sp_sandbox_spec_ref(struct sp_sandbox_spec *spec);
void sp_sandbox_spec_unref(struct sp_sandbox_spec *spec);
/* From a row of the desired list; NULL when it is malformed. */
struct sp_sandbox_spec *sp_sandbox_spec_decode(json_t *row, GError **error);

/* Whether the server wants it gone: no long work is begun for it any more. Takes the lock. */
bool sp_sandbox_doomed(struct sp_sandbox *sandbox);
/* The same as an error of the step that does not happen: SP_ERROR_CONFLICT. */
bool sp_sandbox_check_wanted(struct sp_sandbox *sandbox, GError **error);
void sp_sandbox_set_presence(struct sp_sandbox *sandbox, enum sp_presence presence);

/* Sets the defaults of its commands from its template; a user that its spec names goes before the
 * template's. The table's lock is held. */
void sp_sandbox_set_defaults(struct sp_sandbox *sandbox, const char *user, const char *workdir);

/* The sandbox of that id, made as absent if need be. The lock is held by the caller; borrowed. */
struct sp_sandbox *sp_table_get_locked(struct sp_table *table, struct sp_node *node,
                                       const char *id);
/* Ids of all that have a run directory; free with g_strfreev(). */
char **sp_table_ids(struct sp_table *table);
/* All sandboxes, a reference each; the array unrefs them. */
GPtrArray *sp_table_all(struct sp_table *table);

/* What a command in a sandbox needs. */
struct sp_sandbox_use {
    struct sp_link *link; /* a reference */
    char *user, *workdir;
};
/* SP_ERROR_NOT_FOUND: no such sandbox; SP_ERROR_FAILED_PRECONDITION: it does not run, and why. */
bool sp_table_use(struct sp_table *table, const char *id, struct sp_sandbox_use *ret,
                  GError **error);
void sp_sandbox_use_clear(struct sp_sandbox_use *use);
