/* Creates, deletes and the worker's reports, in every order. */
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "fixture.h"

static void test_delete_wins(struct fixture *f, gconstpointer data)
{
    /* whatever comes in after an accepted delete, in whichever generation, nothing says running */
    for (int state = 0; state < SP_N_STATES; state++) {
        for (int64_t generation = 1; generation <= 3; generation++) {
            struct sp_replay made = fixture_create(f, "{}", NULL);
            char op[SP_ID_MAX], again[SP_ID_MAX], *code = NULL;
            g_assert_true(
                sp_store_sandbox_delete(f->store, "t1", made.resource_id, NULL, NULL, op, NULL));
            g_assert_cmpint(fixture_operation(f, made.operation_id, &code), ==,
                            SP_OPERATION_FAILED);
            g_assert_cmpstr(code, ==, "conflict");
            g_free(code);
            fixture_report(f, made.resource_id, generation, (enum sp_state)state);
            struct sp_sandbox_row *s = fixture_sandbox(f, made.resource_id);
            bool done = state == SP_STATE_DELETED && generation == 2;
            g_assert_cmpint(s->state, ==, done ? SP_STATE_DELETED : SP_STATE_DELETING);
            g_assert_cmpint(fixture_operation(f, op, NULL) == SP_OPERATION_SUCCEEDED, ==, done);
            sp_sandbox_row_free(s);

            g_assert_true(
                sp_store_sandbox_delete(f->store, "t1", made.resource_id, NULL, NULL, again, NULL));
            g_assert_cmpstr(op, ==, again);
            fixture_report(f, made.resource_id, 2, SP_STATE_DELETED);
            g_assert_null(sp_store_sandbox_get(f->store, "t1", made.resource_id, NULL));
        }
    }
}

static void test_reports_fit_or_are_ignored(struct fixture *f, gconstpointer data)
{
    static const struct {
        int64_t generation;
        enum sp_state report, state;
        enum sp_operation_state operation;
    } rows[] = {
        {0, SP_STATE_RUNNING, SP_STATE_CREATING, SP_OPERATION_PENDING},
        {2, SP_STATE_RUNNING, SP_STATE_CREATING, SP_OPERATION_PENDING},
        {1, SP_STATE_CREATING, SP_STATE_CREATING, SP_OPERATION_RUNNING},
        {1, SP_STATE_RUNNING, SP_STATE_RUNNING, SP_OPERATION_SUCCEEDED},
        {1, SP_STATE_FAILED, SP_STATE_FAILED, SP_OPERATION_FAILED},
        {1, SP_STATE_DELETED, SP_STATE_FAILED, SP_OPERATION_FAILED},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct sp_replay made = fixture_create(f, "{}", NULL);
        for (int twice = 0; twice < 2; twice++) {
            g_test_message("row %zu", i);
            fixture_report(f, made.resource_id, rows[i].generation, rows[i].report);
            struct sp_sandbox_row *s = fixture_sandbox(f, made.resource_id);
            g_assert_cmpint(s->state, ==, rows[i].state);
            g_assert_cmpint(fixture_operation(f, made.operation_id, NULL), ==, rows[i].operation);
            g_assert_cmpint(sp_sandbox_wire_desired(s), ==,
                            s->state == SP_STATE_FAILED ? SP_DESIRED_DELETED : SP_DESIRED_RUNNING);
            sp_sandbox_row_free(s);
        }
        struct sp_observation other = {
            .id = made.resource_id, .generation = 1, .state = SP_STATE_FAILED};
        g_assert_true(sp_store_observe(f->store, "other-node", &other, 1, NULL));
        struct sp_sandbox_row *s = fixture_sandbox(f, made.resource_id);
        g_assert_cmpint(s->state, ==, rows[i].state);
        sp_sandbox_row_free(s);
    }
}

static void test_idempotency(struct fixture *f, gconstpointer data)
{
    struct sp_replay first = fixture_create(f, "{\"name\":\"a\"}", "key");
    g_assert_false(first.found);
    fixture_reopen(f); /* also after a crash */
    struct sp_replay second = fixture_create(f, "{\"name\":\"a\"}", "key");
    g_assert_true(second.found);
    g_assert_cmpstr(first.resource_id, ==, second.resource_id);
    g_assert_cmpstr(first.operation_id, ==, second.operation_id);
    struct sp_idempotency other = {.key_id = "key_1", .key = "key", .hash = "another"};
    struct sp_replay replay;
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_store_replay_find(f->store, &other, &replay, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_IDEMPOTENCY_CONFLICT);
    other.key_id = "key_2"; /* keys of another API key are others */
    g_assert_true(sp_store_replay_find(f->store, &other, &replay, NULL));
    g_assert_false(replay.found);
    g_assert_true(sp_store_replay_claim(f->store, &other, &replay, NULL));
    g_assert_false(replay.found);
    g_assert_true(sp_store_replay_claim(f->store, &other, &replay, NULL));
    g_assert_true(replay.found);
    sp_store_replay_release(f->store, &other);
    g_assert_true(sp_store_replay_claim(f->store, &other, &replay, NULL));
    g_assert_false(replay.found);
}

static void test_tenants_do_not_see_each_other(struct fixture *f, gconstpointer data)
{
    struct sp_replay made = fixture_create(f, "{}", NULL);
    fixture_report(f, made.resource_id, 1, SP_STATE_RUNNING);
    struct sp_session_new new = {.tenant = "t1",
                                 .sandbox_id = made.resource_id,
                                 .spec = "{}",
                                 .token = {"hash-1", sp_time_now_ms() + 60000}};
    struct sp_replay session;
    char op[SP_ID_MAX];
    struct sp_sandbox_patch patch = {0};
    g_assert_true(sp_store_session_create(f->store, &new, NULL, &session, NULL));

    g_assert_null(sp_store_sandbox_get(f->store, "t2", made.resource_id, NULL));
    g_assert_null(sp_store_operation_get(f->store, "t2", made.operation_id, NULL));
    g_assert_null(sp_store_session_get(f->store, "t2", session.resource_id, NULL));
    g_assert_false(
        sp_store_session_add_token(f->store, "t2", session.resource_id, &new.token, NULL));
    g_assert_false(sp_store_sandbox_patch(f->store, "t2", made.resource_id, &patch, NULL, NULL));
    g_autoptr(GError) error = NULL;
    g_assert_false(
        sp_store_sandbox_delete(f->store, "t2", made.resource_id, NULL, NULL, op, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    new.tenant = "t2";
    g_strlcpy(new.token.hash, "hash-2", SP_HASH_HEX);
    g_assert_false(sp_store_session_create(f->store, &new, NULL, &session, NULL));
    struct sp_sandbox_filter filter = {.tenant = "t2", .limit = 10};
    g_autoptr(GPtrArray) list = sp_store_sandbox_list(f->store, &filter, NULL);
    g_assert_cmpint(list->len, ==, 0);
}

static void test_what_a_worker_is_told(struct fixture *f, gconstpointer data)
{
    struct sp_replay a = fixture_create(f, "{}", NULL), b = fixture_create(f, "{}", NULL);
    struct sp_desired_set set;
    g_assert_true(sp_store_desired(f->store, "local", 0, &set, NULL));
    g_assert_cmpint(set.sandboxes->len, ==, 2);
    int64_t revision = set.revision;
    sp_desired_set_clear(&set);

    fixture_report(f, a.resource_id, 1, SP_STATE_RUNNING); /* what it said itself is no news */
    g_assert_true(sp_store_desired(f->store, "local", revision, &set, NULL));
    g_assert_cmpint(set.sandboxes->len, ==, 0);
    g_assert_cmpint(set.revision, ==, revision);
    sp_desired_set_clear(&set);

    char op[SP_ID_MAX];
    g_assert_true(sp_store_sandbox_delete(f->store, NULL, b.resource_id, NULL, NULL, op, NULL));
    g_assert_true(sp_store_desired(f->store, "local", revision, &set, NULL));
    g_assert_cmpint(set.sandboxes->len, ==, 1);
    const struct sp_sandbox_row *row = set.sandboxes->pdata[0];
    g_assert_cmpstr(row->id, ==, b.resource_id);
    g_assert_cmpint(row->desired, ==, SP_DESIRED_DELETED);
    g_assert_cmpint(row->generation, ==, 2);
    sp_desired_set_clear(&set);

    fixture_report(f, b.resource_id, 2, SP_STATE_DELETED);
    g_assert_true(sp_store_desired(f->store, "local", 0, &set, NULL));
    g_assert_cmpint(set.sandboxes->len, ==, 1);
    sp_desired_set_clear(&set);
    char *ids[] = {b.resource_id, (char *)"sbx_unknown", a.resource_id, NULL};
    g_autoptr(GPtrArray) rows = sp_store_desired_of(f->store, "local", ids, NULL);
    g_assert_cmpint(rows->len, ==, 2); /* a deleted one is still known, an unknown one is not */
    g_autoptr(GPtrArray) none = sp_store_desired_of(f->store, "other", ids, NULL);
    g_assert_cmpint(none->len, ==, 0);
}

static void test_sessions_end_once(struct fixture *f, gconstpointer data)
{
    struct sp_replay made = fixture_create(f, "{}", NULL), session;
    struct sp_session_new new = {.tenant = "t1",
                                 .sandbox_id = made.resource_id,
                                 .spec = "{\"a\":1}",
                                 .token = {"hash", sp_time_now_ms() + 60000}};
    g_autoptr(GError) error = NULL;
    g_assert_false(sp_store_session_create(f->store, &new, NULL, &session, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    fixture_report(f, made.resource_id, 1, SP_STATE_RUNNING);
    g_assert_true(sp_store_session_create(f->store, &new, NULL, &session, NULL));

    struct sp_session_report reports[] = {
        {.id = session.resource_id, .state = SP_SESSION_RUNNING},
        {.id = session.resource_id, .state = SP_SESSION_PENDING},
        {.id = session.resource_id, .state = SP_SESSION_EXITED, .exit = "{\"exit_code\":1}"},
        {.id = session.resource_id, .state = SP_SESSION_LOST},
        {.id = "ses_unknown", .state = SP_SESSION_LOST},
    };
    g_assert_true(
        sp_store_session_report(f->store, "other", &reports[3], 1, NULL)); /* not its own */
    g_assert_true(sp_store_session_report(f->store, "local", reports, G_N_ELEMENTS(reports), NULL));
    struct sp_session_row *s = sp_store_session_get(f->store, "t1", session.resource_id, NULL);
    g_assert_cmpint(s->state, ==, SP_SESSION_EXITED);
    g_assert_cmpstr(s->exit, ==, "{\"exit_code\":1}");
    sp_session_row_free(s);

    /* an expired token is not handed out */
    g_autoptr(GArray) tokens = NULL;
    struct sp_session_token old = {"old", sp_time_now_ms() - 1};
    g_assert_true(sp_store_session_add_token(f->store, "t1", session.resource_id, &old, NULL));
    s = sp_store_session_for_worker(f->store, session.resource_id, &tokens, NULL);
    g_assert_cmpint(tokens->len, ==, 1);
    sp_session_row_free(s);
}

static void test_env_is_forgotten_with_the_sandbox(struct fixture *f, gconstpointer data)
{
    struct sp_replay made = fixture_create(f, "{\"env\":{\"TOKEN\":\"hush-hush\"}}", NULL);
    char op[SP_ID_MAX];
    g_assert_true(sp_store_sandbox_delete(f->store, NULL, made.resource_id, NULL, NULL, op, NULL));
    fixture_report(f, made.resource_id, 2, SP_STATE_DELETED);
    struct sp_sandbox_row *s = fixture_sandbox(f, made.resource_id);
    g_assert_cmpstr(s->env, ==, "{}");
    sp_sandbox_row_free(s);
}

#define ADD(path, fn) g_test_add(path, struct fixture, NULL, fixture_set_up, fn, fixture_tear_down)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("/lifecycle/delete_wins", test_delete_wins);
    ADD("/lifecycle/reports_fit_or_are_ignored", test_reports_fit_or_are_ignored);
    ADD("/lifecycle/idempotency", test_idempotency);
    ADD("/lifecycle/tenants_do_not_see_each_other", test_tenants_do_not_see_each_other);
    ADD("/lifecycle/what_a_worker_is_told", test_what_a_worker_is_told);
    ADD("/lifecycle/sessions_end_once", test_sessions_end_once);
    ADD("/lifecycle/env_is_forgotten_with_the_sandbox", test_env_is_forgotten_with_the_sandbox);
    return g_test_run();
}
