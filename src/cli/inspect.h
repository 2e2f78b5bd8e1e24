/*
 * What an installation has on this host, for `space doctor`: everything in its directories and
 * control groups with a name of its own, the records that may own it, and what server and worker
 * know.
 *
 * Only looks; findings.h says what is wrong with it, mend.h puts it right.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "os/cleanup.h"

enum sp_thing_kind {
    SP_THING_MOUNT,  /* below run/sandboxes, run/pool or data/layers */
    SP_THING_CGROUP, /* of the installation's root group */
    SP_THING_LAYER,  /* data/layers/… */
    SP_THING_SAVED,  /* data/saved/… */
    SP_THING_TMP,    /* data/tmp/… */
    SP_THING_RUN,    /* run/sandboxes/…, run/pool/… */
    SP_N_THING_KINDS,
};
const char *sp_thing_kind_name(enum sp_thing_kind kind); /* "layer" */

struct sp_thing {
    enum sp_thing_kind kind;
    char *name;     /* file name, or name of the group */
    char *owner;    /* the sandbox, snapshot or pool member that the name is made from */
    char *path;     /* absolute; of a group NULL */
    int64_t age_ms; /* since it was last changed; -1: not known */
    bool busy;      /* processes are in the group */
};

/* A run directory, which owns what its record names. */
struct sp_owner {
    char *dir;         /* its name */
    char *path;        /* absolute */
    char *text;        /* of the record; NULL: it has none */
    char *id;          /* that the record names; NULL */
    char *cgroup;      /* NULL */
    int64_t slot;      /* -1: not known */
    int64_t age_ms;    /* of the directory */
    bool pool;         /* run/pool */
    bool suspended;    /* the file of docs/lifecycle.md §2 is there */
    bool process_gone; /* the recorded process provably does not run (driver/record.h) */
};

struct sp_facts {
    char *state_dir;
    GPtrArray *things; /* of struct sp_thing */
    GPtrArray *owners; /* of struct sp_owner */
    bool daemons_run;  /* a worker or server holds its lock */
    bool server_answers, worker_answers;
    char *server_detail, *worker_detail; /* why not; NULL */
    json_t *sandboxes; /* id → row of GET /v1/sandboxes; NULL without an answer */
    json_t *snapshots; /* id → row of GET /v1/snapshots */
    json_t *known;     /* id → answer of desired_of (docs/worker-protocol.md) */
    json_t *inventory; /* of the worker; NULL without an answer */
    int locks[2];      /* of the daemons, held by us when none runs; -1 */
};

/* Looks at <state_dir> (absolute). When no daemons run their locks are taken until sp_facts_free(),
 * so that none starts in between. SP_ERROR_NOT_FOUND: there is no installation;
 * SP_ERROR_PERMISSION_DENIED: not ours to read. Blocks for some seconds at most. */
struct sp_facts *sp_facts_gather(const char *state_dir, GError **error);
/* Asks server and worker by the installation's own keys; fills the members for that. */
void sp_facts_ask(struct sp_facts *facts);
void sp_facts_free(struct sp_facts *facts); /* NULL is fine */
SP_DEFINE_CLEANUP(struct sp_facts, sp_facts_free)

/* Empty facts, for tests of what is made of them. */
struct sp_facts *sp_facts_new(const char *state_dir);
struct sp_thing *sp_facts_add_thing(struct sp_facts *facts, enum sp_thing_kind kind,
                                    const char *name, const char *path);
struct sp_owner *sp_facts_add_owner(struct sp_facts *facts, const char *dir, const char *path);
