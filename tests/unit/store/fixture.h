/*
 * A fresh store with a tenant "t1", a node "local" and short ways to make rows: a SQLite file in a
 * directory of its own, or, when the environment has SPACE_TEST_POSTGRES (the URL of a database of
 * the test's), a schema of its own there. Every test of the store is run both ways (meson.build).
 */
#pragma once

#include "store/store.h"

struct fixture {
    char *dir;
    char *where; /* for sp_store_open() and sp_db_open() */
    struct sp_store *store;
};

void fixture_set_up(struct fixture *f, gconstpointer data);
void fixture_tear_down(struct fixture *f, gconstpointer data);
bool fixture_is_postgres(void);
/* Runs SQL as the owner of PostgreSQL, on the test's database. */
void fixture_sql(const char *sql);
/* Another database, empty, that goes with the fixture; free with g_free(). */
char *fixture_empty(struct fixture *f, const char *name);
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
