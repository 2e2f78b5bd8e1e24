/* Housekeeping, with the clock set forward. */
#include "base/time.h"
#include "fixture.h"

#define MINUTE (60 * (int64_t)1000)
#define HOUR (60 * MINUTE)

static struct sp_sweep_result sweep(struct fixture *f, int64_t after_ms)
{
    struct sp_sweep_result result;
    g_assert_true(sp_store_sweep(f->store, sp_time_now_ms() + after_ms, &result, NULL));
    return result;
}

static void test_overdue_create(struct fixture *f, gconstpointer data)
{
    struct sp_replay made = fixture_create(f, "{}", NULL);
    struct sp_sweep_result r = sweep(f, 4 * MINUTE);
    g_assert_cmpint(r.timed_out, ==, 0);
    g_assert_cmpint(r.next_at_ms, <=, sp_time_now_ms() + 5 * MINUTE);
    g_assert_cmpint(sweep(f, 5 * MINUTE + 1).timed_out, ==, 1);
    char *code = NULL;
    g_assert_cmpint(fixture_operation(f, made.operation_id, &code), ==, SP_OPERATION_FAILED);
    g_assert_cmpstr(code, ==, "unavailable");
    g_free(code);
    struct sp_sandbox_row *s = fixture_sandbox(f, made.resource_id);
    g_assert_cmpint(s->state, ==, SP_STATE_FAILED);
    g_assert_cmpint(sp_sandbox_wire_desired(s), ==, SP_DESIRED_DELETED);
    sp_sandbox_row_free(s);
    /* a worker that comes back late with it does not revive it */
    fixture_report(f, made.resource_id, 1, SP_STATE_RUNNING);
    fixture_report(f, made.resource_id, 2, SP_STATE_RUNNING);
    s = fixture_sandbox(f, made.resource_id);
    g_assert_cmpint(s->state, ==, SP_STATE_FAILED);
    sp_sandbox_row_free(s);
    g_assert_cmpint(sweep(f, 10 * MINUTE).timed_out, ==, 0);
}

static void test_overdue_delete_stays_wanted(struct fixture *f, gconstpointer data)
{
    struct sp_replay made = fixture_create(f, "{}", NULL);
    char first[SP_ID_MAX], second[SP_ID_MAX];
    g_assert_true(
        sp_store_sandbox_delete(f->store, NULL, made.resource_id, NULL, NULL, first, NULL));
    g_assert_cmpint(sweep(f, HOUR + 1).timed_out, ==, 1);
    g_assert_cmpint(fixture_operation(f, first, NULL), ==, SP_OPERATION_FAILED);
    struct sp_sandbox_row *s = fixture_sandbox(f, made.resource_id);
    g_assert_cmpint(s->desired, ==, SP_DESIRED_DELETED);
    g_assert_cmpint(s->state, ==, SP_STATE_DELETING);
    sp_sandbox_row_free(s);
    g_assert_true(
        sp_store_sandbox_delete(f->store, NULL, made.resource_id, NULL, NULL, second, NULL));
    g_assert_cmpstr(first, !=, second);
    fixture_report(f, made.resource_id, 3, SP_STATE_DELETED);
    g_assert_cmpint(fixture_operation(f, second, NULL), ==, SP_OPERATION_SUCCEEDED);
}

static void test_expiry(struct fixture *f, gconstpointer data)
{
    struct sp_replay old = fixture_create(f, "{\"max_lifetime\":\"1h\"}", NULL);
    struct sp_replay idle =
        fixture_create(f, "{\"idle_timeout\":\"1h\",\"on_idle\":\"delete\"}", NULL);
    struct sp_replay busy =
        fixture_create(f, "{\"idle_timeout\":\"1h\",\"on_idle\":\"delete\"}", NULL);
    struct sp_replay other = fixture_create(f, "{\"idle_timeout\":\"1h\"}", NULL);
    const char *ids[] = {old.resource_id, idle.resource_id, busy.resource_id, other.resource_id};
    for (size_t i = 0; i < G_N_ELEMENTS(ids); i++)
        fixture_report(f, ids[i], 1, SP_STATE_RUNNING);
    struct sp_session_new new = {.tenant = "t1",
                                 .sandbox_id = busy.resource_id,
                                 .spec = "{}",
                                 .token = {"hash", sp_time_now_ms() + 60000}};
    struct sp_replay session;
    g_assert_true(sp_store_session_create(f->store, &new, NULL, &session, NULL));
    struct sp_session_report running = {.id = session.resource_id, .state = SP_SESSION_RUNNING};
    g_assert_true(sp_store_session_report(f->store, NULL, &running, 1, NULL));

    g_assert_cmpint(sweep(f, HOUR - MINUTE).expired, ==, 0);
    struct sp_sweep_result r = sweep(f, HOUR + MINUTE);
    g_assert_cmpint(r.expired, ==, 1);
    g_assert_cmpint(r.idle, ==, 2);
    static const enum sp_desired wanted[] = {SP_DESIRED_DELETED, SP_DESIRED_DELETED,
                                             SP_DESIRED_RUNNING, SP_DESIRED_PAUSED};
    for (size_t i = 0; i < G_N_ELEMENTS(ids); i++) {
        struct sp_sandbox_row *s = fixture_sandbox(f, ids[i]);
        g_assert_cmpint(s->desired, ==, wanted[i]);
        sp_sandbox_row_free(s);
    }
}

static void test_purge(struct fixture *f, gconstpointer data)
{
    struct sp_replay gone = fixture_create(f, "{\"metadata\":{\"a\":\"b\"}}", "key");
    struct sp_replay stays = fixture_create(f, "{}", NULL);
    char op[SP_ID_MAX];
    fixture_report(f, stays.resource_id, 1, SP_STATE_RUNNING);
    g_assert_true(sp_store_sandbox_delete(f->store, NULL, gone.resource_id, NULL, NULL, op, NULL));
    fixture_report(f, gone.resource_id, 2, SP_STATE_DELETED);
    g_assert_cmpint(sweep(f, 23 * HOUR).purged, ==, 0);
    sp_sandbox_row_free(fixture_sandbox(f, gone.resource_id));
    g_assert_cmpint(sweep(f, 25 * HOUR).purged, ==, 2); /* the row and the idempotency record */
    g_assert_null(sp_store_sandbox_get_any(f->store, NULL, gone.resource_id, NULL));
    struct sp_operation_row *kept = sp_store_operation_get(f->store, "t1", op, NULL);
    g_assert_nonnull(kept); /* the record of what was done outlives it by a day */
    sp_operation_row_free(kept);
    sweep(f, 49 * HOUR);
    g_assert_null(sp_store_operation_get(f->store, "t1", op, NULL));
    sp_sandbox_row_free(fixture_sandbox(f, stays.resource_id)); /* never a live one */
}

static struct sp_replay session_of(struct fixture *f, const char *sandbox_id, const char *hash)
{
    struct sp_session_new new = {.tenant = "t1", .sandbox_id = sandbox_id, .spec = "{}"};
    struct sp_replay made;
    g_strlcpy(new.token.hash, hash, sizeof new.token.hash);
    new.token.expires_at_ms = sp_time_now_ms() + MINUTE;
    g_assert_true(sp_store_session_create(f->store, &new, NULL, &made, NULL));
    return made;
}

static bool session_there(struct fixture *f, const struct sp_replay *session)
{
    struct sp_session_row *row = sp_store_session_get(f->store, "t1", session->resource_id, NULL);
    sp_session_row_free(row);
    return row != NULL;
}

/* A sandbox that lives on does not gather its past for ever. */
static void test_history(struct fixture *f, gconstpointer data)
{
    struct sp_replay made = fixture_create(f, "{\"on_idle\":\"none\"}", NULL);
    char first[SP_ID_MAX], last[SP_ID_MAX];
    fixture_report(f, made.resource_id, 1, SP_STATE_RUNNING);
    struct sp_replay ended = session_of(f, made.resource_id, "a");
    struct sp_replay runs = session_of(f, made.resource_id, "b");
    struct sp_replay pending = session_of(f, made.resource_id, "c");
    struct sp_session_report reports[] = {
        {.id = ended.resource_id, .state = SP_SESSION_EXITED, .exit = "{}"},
        {.id = runs.resource_id, .state = SP_SESSION_RUNNING}};
    g_assert_true(sp_store_session_report(f->store, "local", reports, 2, NULL));
    struct sp_change_new pause = {.change = SP_CHANGE_PAUSE}, wake = {.change = SP_CHANGE_WAKE};
    g_assert_true(
        sp_store_sandbox_change(f->store, "t1", made.resource_id, &pause, NULL, first, NULL));
    fixture_report(f, made.resource_id, 2, SP_STATE_PAUSED);
    g_assert_true(
        sp_store_sandbox_change(f->store, "t1", made.resource_id, &wake, NULL, last, NULL));
    fixture_report(f, made.resource_id, 3, SP_STATE_RUNNING);

    g_assert_cmpint(sweep(f, 6 * 24 * HOUR).purged, ==, 3); /* the tokens */
    fixture_operation(f, first, NULL);
    g_assert_true(session_there(f, &ended) && session_there(f, &pending));
    g_assert_cmpint(sweep(f, 7 * 24 * HOUR + MINUTE).purged, ==, 4);
    g_assert_null(sp_store_operation_get(f->store, "t1", first, NULL));
    g_assert_null(sp_store_operation_get(f->store, "t1", made.operation_id, NULL));
    fixture_operation(f, last, NULL); /* what the sandbox is by */
    g_assert_false(session_there(f, &ended) || session_there(f, &pending));
    g_assert_true(session_there(f, &runs));
}

#define ADD(path, fn) g_test_add(path, struct fixture, NULL, fixture_set_up, fn, fixture_tear_down)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("/sweep/overdue_create", test_overdue_create);
    ADD("/sweep/overdue_delete_stays_wanted", test_overdue_delete_stays_wanted);
    ADD("/sweep/expiry", test_expiry);
    ADD("/sweep/purge", test_purge);
    ADD("/sweep/history", test_history);
    return g_test_run();
}
