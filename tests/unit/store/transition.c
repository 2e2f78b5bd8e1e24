/* Pause, suspend, wake, rollback and what workers report of them; the clock set forward; an old
 * database. */
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "fixture.h"
#include "store/db.h"
#include "store/migrations/migrations.h"

#define MINUTE (60 * (int64_t)1000)
#define TIERS                                                                                      \
    "[{\"tier\":\"container\",\"available\":true,\"save_memory\":true},"                           \
    "{\"tier\":\"microvm\",\"available\":true,\"save_memory\":false,"                              \
    "\"save_memory_detail\":\"a test\"}]"

static void set_up(struct fixture *f, gconstpointer data)
{
    fixture_set_up(f, data);
    struct sp_node_row node = {.name = (char *)"local",
                               .instance = (char *)"one",
                               .data_url = (char *)"http://127.0.0.1:1",
                               .tiers = (char *)TIERS,
                               .templates = (char *)"[]",
                               .pools = (char *)"[{\"ready\":1}]",
                               .lease_expires_at_ms = sp_time_now_ms() + 15000};
    g_assert_true(sp_store_node_register(f->store, &node, NULL));
}

static char *running(struct fixture *f)
{
    struct sp_replay made = fixture_create(f, "{}", NULL);
    fixture_report(f, made.resource_id, 1, SP_STATE_RUNNING);
    return g_strdup(made.resource_id);
}

static bool ask(struct fixture *f, const char *id, enum sp_change what, bool memory,
                char op[SP_ID_MAX], GError **error)
{
    struct sp_change_new change = {.change = what, .memory = memory};
    return sp_store_sandbox_change(f->store, "t1", id, &change, NULL, op, error);
}

static void change(struct fixture *f, const char *id, enum sp_change what, char op[SP_ID_MAX])
{
    g_autoptr(GError) error = NULL;
    ask(f, id, what, true, op, &error);
    g_assert_no_error(error);
}

static void expect(struct fixture *f, const char *id, enum sp_state state, enum sp_desired desired,
                   int64_t generation)
{
    struct sp_sandbox_row *s = fixture_sandbox(f, id);
    g_assert_cmpstr(sp_state_names[s->state], ==, sp_state_names[state]);
    g_assert_cmpstr(sp_desired_names[s->desired], ==, sp_desired_names[desired]);
    g_assert_cmpint(s->generation, ==, generation);
    sp_sandbox_row_free(s);
}

static void report_error(struct fixture *f, const char *id, int64_t generation, enum sp_state state)
{
    struct sp_observation seen = {.id = id,
                                  .generation = generation,
                                  .state = state,
                                  .error_code = "unavailable",
                                  .error_message = "no space"};
    g_assert_true(sp_store_observe(f->store, "local", &seen, 1, NULL));
}

static void test_round(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f);
    static const struct {
        enum sp_change change;
        enum sp_state state;
        enum sp_desired desired;
    } steps[] = {
        {SP_CHANGE_PAUSE, SP_STATE_PAUSED, SP_DESIRED_PAUSED},
        {SP_CHANGE_SUSPEND, SP_STATE_SUSPENDED, SP_DESIRED_SUSPENDED},
        {SP_CHANGE_WAKE, SP_STATE_RUNNING, SP_DESIRED_RUNNING},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(steps); i++) {
        char op[SP_ID_MAX], again[SP_ID_MAX];
        int64_t generation = (int64_t)i + 2;
        change(f, id, steps[i].change, op);
        g_assert_cmpint(fixture_operation(f, op, NULL), ==, SP_OPERATION_PENDING);
        change(f, id, steps[i].change, again);
        g_assert_cmpstr(op, ==, again);
        fixture_reopen(f); /* a crash of the server loses nothing */
        fixture_report(f, id, generation - 1, steps[i].state); /* of an older generation */
        g_assert_cmpint(fixture_operation(f, op, NULL), ==, SP_OPERATION_PENDING);
        fixture_report(f, id, generation, steps[i].state);
        g_assert_cmpint(fixture_operation(f, op, NULL), ==, SP_OPERATION_SUCCEEDED);
        expect(f, id, steps[i].state, steps[i].desired, generation);
        change(f, id, steps[i].change, again);
        g_assert_cmpstr(op, ==, again);
    }
}

static void test_memory(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f);
    char op[SP_ID_MAX];
    g_autoptr(GError) error = NULL;
    g_assert_true(ask(f, id, SP_CHANGE_SUSPEND, false, op, NULL));
    g_assert_false(ask(f, id, SP_CHANGE_SUSPEND, true, op, &error)); /* not the same wish */
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    struct sp_sandbox_row *s = fixture_sandbox(f, id);
    g_assert_false(s->suspend_memory);
    sp_sandbox_row_free(s);
}

static void test_failure(struct fixture *f, gconstpointer data)
{
    static const enum sp_state states[] = {SP_STATE_RUNNING, SP_STATE_PAUSED, SP_STATE_SUSPENDED};
    static const enum sp_desired desired[] = {SP_DESIRED_RUNNING, SP_DESIRED_PAUSED,
                                              SP_DESIRED_SUSPENDED};
    for (size_t i = 0; i < G_N_ELEMENTS(states); i++) {
        g_autofree char *id = running(f);
        char op[SP_ID_MAX], *code = NULL;
        change(f, id, SP_CHANGE_SUSPEND, op);
        struct sp_desired_set set;
        g_assert_true(sp_store_desired(f->store, "local", 0, &set, NULL));
        int64_t before = set.revision;
        sp_desired_set_clear(&set);
        /* whatever state it is in then: that is the one wanted now, and the worker hears so */
        report_error(f, id, 2, states[i]);
        g_assert_cmpint(fixture_operation(f, op, &code), ==, SP_OPERATION_FAILED);
        g_assert_cmpstr(code, ==, "unavailable");
        g_free(code);
        expect(f, id, states[i], desired[i], 3);
        g_assert_true(sp_store_desired(f->store, "local", before, &set, NULL));
        g_assert_cmpint(set.sandboxes->len, ==, 1);
        sp_desired_set_clear(&set);
        report_error(f, id, 2, SP_STATE_RUNNING); /* repeated: too old to count */
        expect(f, id, states[i], desired[i], 3);
    }
}

static void test_rollback(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f), *stranger = running(f);
    struct sp_snapshot_request request = {.memory = true};
    struct sp_replay made;
    char op[SP_ID_MAX];
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_store_snapshot_create(f->store, "t1", id, &request, NULL, &made, NULL));
    struct sp_change_new rollback = {.change = SP_CHANGE_ROLLBACK, .snapshot_id = made.resource_id};
    /* while it is being taken nothing changes */
    g_assert_false(sp_store_sandbox_change(f->store, "t1", id, &rollback, NULL, op, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    g_assert_nonnull(strstr(error->message, made.operation_id));
    g_clear_error(&error);
    struct sp_snapshot_report ready = {.id = made.resource_id, .state = SP_SNAPSHOT_READY};
    g_assert_true(sp_store_snapshot_report(f->store, "local", &ready, 1, NULL));
    g_assert_false(sp_store_sandbox_change(f->store, "t1", stranger, &rollback, NULL, op, &error));
    g_assert_cmpstr(sp_error_field(error), ==, "/snapshot_id");

    g_assert_true(sp_store_sandbox_change(f->store, "t1", id, &rollback, NULL, op, NULL));
    struct sp_sandbox_row *s = fixture_sandbox(f, id);
    g_assert_cmpint(s->rollback_generation, ==, 2);
    g_assert_cmpstr(s->rollback_snapshot_id, ==, made.resource_id);
    sp_sandbox_row_free(s);
    fixture_report(f, id, 2, SP_STATE_SUSPENDED); /* on the way */
    g_assert_cmpint(fixture_operation(f, op, NULL), ==, SP_OPERATION_RUNNING);
    report_error(f, id, 2, SP_STATE_SUSPENDED);
    s = fixture_sandbox(f, id);
    g_assert_cmpint(s->rollback_generation, ==, 0); /* or the worker would do it for generation 3 */
    g_assert_cmpint(s->desired, ==, SP_DESIRED_SUSPENDED);
    sp_sandbox_row_free(s);
    g_assert_true(sp_store_sandbox_change(f->store, "t1", id, &rollback, NULL, op, NULL));
    fixture_report(f, id, 4, SP_STATE_RUNNING);
    g_assert_cmpint(fixture_operation(f, op, NULL), ==, SP_OPERATION_SUCCEEDED);
}

static struct sp_sweep_result sweep(struct fixture *f, int64_t after_ms)
{
    struct sp_sweep_result result;
    g_assert_true(sp_store_sweep(f->store, sp_time_now_ms() + after_ms, &result, NULL));
    return result;
}

static void test_overdue(struct fixture *f, gconstpointer data)
{
    static const struct {
        enum sp_change change;
        enum sp_state from;
        enum sp_desired back;
        int64_t limit_ms;
    } rows[] = {
        {SP_CHANGE_PAUSE, SP_STATE_RUNNING, SP_DESIRED_RUNNING, 5 * MINUTE},
        {SP_CHANGE_WAKE, SP_STATE_SUSPENDED, SP_DESIRED_SUSPENDED, 5 * MINUTE},
        {SP_CHANGE_WAKE, SP_STATE_PAUSED, SP_DESIRED_PAUSED, 5 * MINUTE},
        {SP_CHANGE_SUSPEND, SP_STATE_RUNNING, SP_DESIRED_RUNNING, 30 * MINUTE},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *id = running(f);
        char op[SP_ID_MAX], *code = NULL;
        int64_t generation = 2;
        if (rows[i].from != SP_STATE_RUNNING) {
            bool paused = rows[i].from == SP_STATE_PAUSED;
            change(f, id, paused ? SP_CHANGE_PAUSE : SP_CHANGE_SUSPEND, op);
            fixture_report(f, id, generation++, rows[i].from);
        }
        change(f, id, rows[i].change, op);
        struct sp_sweep_result early = sweep(f, rows[i].limit_ms - MINUTE);
        g_assert_cmpint(early.timed_out, ==, 0);
        g_assert_cmpint(early.next_at_ms, <=, sp_time_now_ms() + rows[i].limit_ms);
        g_assert_cmpint(sweep(f, rows[i].limit_ms + 1).timed_out, ==, 1);
        g_assert_cmpint(fixture_operation(f, op, &code), ==, SP_OPERATION_FAILED);
        g_assert_cmpstr(code, ==, "unavailable");
        g_free(code);
        expect(f, id, rows[i].from, rows[i].back, generation + 1);
        /* a worker that comes back late with it */
        fixture_report(f, id, generation, SP_STATE_PAUSED);
        expect(f, id, rows[i].from, rows[i].back, generation + 1);
        g_assert_cmpint(sweep(f, rows[i].limit_ms + 1).timed_out, ==, 0);
    }
}

static void test_delete_wins(struct fixture *f, gconstpointer data)
{
    static const enum sp_change changes[] = {SP_CHANGE_PAUSE, SP_CHANGE_SUSPEND};
    for (size_t i = 0; i < G_N_ELEMENTS(changes); i++) {
        for (int state = 0; state < SP_N_STATES; state++) {
            for (int with_error = 0; with_error < 2; with_error++) {
                g_autofree char *id = running(f);
                char op[SP_ID_MAX], gone[SP_ID_MAX], *code = NULL;
                change(f, id, changes[i], op);
                g_assert_true(sp_store_sandbox_delete(f->store, "t1", id, NULL, NULL, gone, NULL));
                g_assert_cmpint(fixture_operation(f, op, &code), ==, SP_OPERATION_FAILED);
                g_assert_cmpstr(code, ==, "conflict");
                g_free(code);
                for (int64_t generation = 1; generation <= 3; generation++) {
                    if (with_error)
                        report_error(f, id, generation, (enum sp_state)state);
                    else
                        fixture_report(f, id, generation, (enum sp_state)state);
                }
                struct sp_sandbox_row *s = fixture_sandbox(f, id);
                g_assert_true(s->state ==
                              (state == SP_STATE_DELETED ? SP_STATE_DELETED : SP_STATE_DELETING));
                g_assert_cmpint(s->desired, ==, SP_DESIRED_DELETED);
                sp_sandbox_row_free(s);
                g_autoptr(GError) error = NULL;
                g_assert_false(ask(f, id, SP_CHANGE_WAKE, true, op, &error));
                g_assert_true(g_error_matches(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION) ||
                              g_error_matches(error, SP_ERROR, SP_ERROR_NOT_FOUND));
            }
        }
    }
}

/* A database as the first version has left it. */
static void test_old_database(struct fixture *f, gconstpointer data)
{
    g_autofree char *where = fixture_empty(f, "old");
    struct sp_db *db = sp_db_open(where, NULL);
    struct sp_db_tx *tx = sp_db_begin(db, SP_DB_WRITE, NULL);
    g_assert_cmpint(sp_migrations[0].version, ==, 1);
    for (const char *const *sql = sp_migrations[0].statements; *sql; sql++)
        g_assert_true(sp_db_run(tx, NULL, NULL, *sql, ""));
    static const char *const rows[] = {
        "CREATE TABLE schema_migrations (version BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)",
        "INSERT INTO schema_migrations (version, applied_at) VALUES (1, 0)",
        "INSERT INTO nodes (name, instance, data_url, tiers, templates, registered_at,"
        " lease_expires_at) VALUES ('local', 'i', 'u', '[]', '[]', 1, 1)",
        "INSERT INTO sandboxes (id, tenant, node, state, desired_state, generation, revision,"
        " operation_id, template, template_digest, isolation, isolation_reason, cpus_milli,"
        " memory_mb, disk_mb, pids, env, metadata, network, idle_timeout_ms, on_idle,"
        " max_lifetime_ms, created_at, started_at, last_active_at) VALUES ('sbx_old', 't1', "
        "'local',"
        " 'running', 'running', 1, 1, 'op_old', 'seed:latest', '" DIGEST "', 'container',"
        " 'requested', 1000, 512, 2048, 128, '{}', '{}', '{}', 1000, 'none', 0, 1, 1, 1)",
        "INSERT INTO operations (id, tenant, kind, state, sandbox_id, created_at)"
        " VALUES ('op_old', 't1', 'create', 'succeeded', 'sbx_old', 1)",
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++)
        g_assert_true(sp_db_run(tx, NULL, NULL, rows[i], ""));
    g_assert_true(sp_db_commit(tx, NULL));
    sp_db_close(db);

    g_autoptr(GError) error = NULL;
    struct sp_store *store = sp_store_open(where, &error);
    g_assert_no_error(error);
    struct sp_sandbox_row *s = sp_store_sandbox_get(store, "t1", "sbx_old", NULL);
    g_assert_nonnull(s);
    g_assert_cmpint(s->attached, ==, -1);
    g_assert_true(s->suspend_memory && !s->saved_from && s->rollback_generation == 0);
    sp_sandbox_row_free(s);
    struct sp_node_row *node = sp_store_node_get(store, "local", NULL);
    g_assert_cmpstr(node->pools, ==, "[]");
    sp_node_row_free(node);
    struct sp_change_new pause = {.change = SP_CHANGE_PAUSE};
    char op[SP_ID_MAX];
    g_assert_true(sp_store_sandbox_change(store, "t1", "sbx_old", &pause, NULL, op, NULL));
    sp_store_close(store);
}

#define ADD(path, fn) g_test_add(path, struct fixture, NULL, set_up, fn, fixture_tear_down)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("/transition/round", test_round);
    ADD("/transition/memory", test_memory);
    ADD("/transition/failure", test_failure);
    ADD("/transition/rollback", test_rollback);
    ADD("/transition/overdue", test_overdue);
    ADD("/transition/delete_wins", test_delete_wins);
    ADD("/transition/old_database", test_old_database);
    return g_test_run();
}
