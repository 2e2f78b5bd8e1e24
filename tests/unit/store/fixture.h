/* A store in a fresh directory, with a tenant "t1", a node "local" and short ways to make rows. */
#pragma once

#include "store/store.h"

struct fixture {
    char *dir, *path;
    struct sp_store *store;
};

void fixture_set_up(struct fixture *f, gconstpointer data);
void fixture_tear_down(struct fixture *f, gconstpointer data);
/* Closes and opens the store again, as after a crash. */
void fixture_reopen(struct fixture *f);

#define DIGEST "sha256:0000000000000000000000000000000000000000000000000000000000000001"

/* json: the request's body; key: of idempotency, or NULL. */
struct sp_replay fixture_create(struct fixture *f, const char *json, const char *key);
/* A report of the node about the sandbox's generation. */
void fixture_report(struct fixture *f, const char *id, int64_t generation, enum sp_state state);
/* The row, also of a deleted one; the caller frees. */
struct sp_sandbox_row *fixture_sandbox(struct fixture *f, const char *id);
enum sp_operation_state fixture_operation(struct fixture *f, const char *id, char **ret_code);
