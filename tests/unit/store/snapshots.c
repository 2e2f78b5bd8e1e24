/* Snapshots and forks, in every order of requests, reports and crashes. */
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "fixture.h"

#define MINUTE (60 * (int64_t)1000)
#define HOUR (60 * MINUTE)

static void set_up(struct fixture *f, gconstpointer data)
{
    fixture_set_up(f, data);
    struct sp_node_row node = {
        .name = (char *)"local",
        .instance = (char *)"one",
        .data_url = (char *)"http://127.0.0.1:1",
        .tiers = (char *)"[{\"tier\":\"container\",\"available\":true,\"save_memory\":true}]",
        .templates = (char *)"[]",
        .lease_expires_at_ms = sp_time_now_ms() + 15000};
    g_assert_true(sp_store_node_register(f->store, &node, NULL));
}

static char *running(struct fixture *f)
{
    struct sp_replay made =
        fixture_create(f, "{\"env\":{\"K\":\"secret\"},\"on_idle\":\"none\"}", NULL);
    fixture_report(f, made.resource_id, 1, SP_STATE_RUNNING);
    return g_strdup(made.resource_id);
}

static struct sp_replay take(struct fixture *f, const char *sandbox_id)
{
    struct sp_snapshot_request request = {.memory = true};
    struct sp_replay made;
    g_autoptr(GError) error = NULL;
    sp_store_snapshot_create(f->store, "t1", sandbox_id, &request, NULL, &made, &error);
    g_assert_no_error(error);
    return made;
}

static void report(struct fixture *f, const char *id, enum sp_snapshot_state state)
{
    struct sp_snapshot_report r = {.id = id, .state = state, .size_bytes = 7, .steps = "[1]"};
    g_assert_true(sp_store_snapshot_report(f->store, "local", &r, 1, NULL));
}

/* What the node is told beyond a revision: numbers of sandboxes, and of snapshots of each kind. */
struct told {
    unsigned sandboxes, taken, removed;
    int64_t revision;
    char snapshot_id[SP_ID_MAX]; /* the first */
};
static struct told told(struct fixture *f, int64_t after)
{
    struct sp_desired_set set;
    g_assert_true(sp_store_desired(f->store, "local", after, &set, NULL));
    struct told t = {.sandboxes = set.sandboxes->len, .revision = set.revision};
    for (unsigned i = 0; i < set.snapshots->len; i++) {
        const struct sp_snapshot_row *n = set.snapshots->pdata[i];
        *(n->wanted ? &t.taken : &t.removed) += 1;
        if (i == 0)
            g_strlcpy(t.snapshot_id, n->id, SP_ID_MAX);
    }
    sp_desired_set_clear(&set);
    return t;
}

static enum sp_snapshot_state state_of(struct fixture *f, const char *id)
{
    struct sp_snapshot_row *n = sp_store_snapshot_get(f->store, "t1", id, NULL);
    enum sp_snapshot_state state = n ? n->state : SP_SNAPSHOT_DELETED;
    sp_snapshot_row_free(n);
    return state;
}

static void test_life(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f);
    int64_t before = told(f, 0).revision;
    struct sp_replay made = take(f, id);
    struct told t = told(f, before);
    g_assert_cmpint(t.taken, ==, 1);
    g_assert_cmpint(t.sandboxes, ==, 0); /* the sandbox itself is not changed by it */
    g_assert_cmpstr(t.snapshot_id, ==, made.resource_id);
    fixture_reopen(f);
    report(f, made.resource_id, SP_SNAPSHOT_READY);
    report(f, made.resource_id, SP_SNAPSHOT_FAILED); /* too late */
    g_assert_cmpint(state_of(f, made.resource_id), ==, SP_SNAPSHOT_READY);
    g_assert_cmpint(fixture_operation(f, made.operation_id, NULL), ==, SP_OPERATION_SUCCEEDED);
    g_assert_cmpint(told(f, 0).taken, ==, 0); /* a finished one is no work */

    char op[SP_ID_MAX], again[SP_ID_MAX];
    before = told(f, 0).revision;
    g_assert_true(sp_store_snapshot_delete(f->store, "t1", made.resource_id, NULL, op, NULL));
    g_assert_cmpint(told(f, before).removed, ==, 1);
    report(f, made.resource_id, SP_SNAPSHOT_DELETED);
    g_assert_cmpint(fixture_operation(f, op, NULL), ==, SP_OPERATION_SUCCEEDED);
    g_assert_cmpint(told(f, 0).removed, ==, 0);
    g_assert_true(sp_store_snapshot_delete(f->store, "t1", made.resource_id, NULL, again, NULL));
    g_assert_cmpstr(op, ==, again);
    /* a worker that still has it is told once more */
    report(f, made.resource_id, SP_SNAPSHOT_READY);
    g_assert_cmpint(told(f, 0).removed, ==, 1);
    g_assert_cmpint(state_of(f, made.resource_id), ==, SP_SNAPSHOT_DELETED);
    report(f, made.resource_id, SP_SNAPSHOT_DELETED);
    g_assert_cmpint(told(f, 0).removed, ==, 0);
}

static void test_failures(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f);
    struct sp_replay made = take(f, id);
    char op[SP_ID_MAX], *code = NULL;
    report(f, made.resource_id, SP_SNAPSHOT_FAILED);
    g_assert_cmpint(fixture_operation(f, made.operation_id, &code), ==, SP_OPERATION_FAILED);
    g_assert_cmpstr(code, ==, "internal");
    g_free(code);
    g_assert_cmpint(told(f, 0).removed, ==, 0); /* nothing of it is left */
    struct sp_snapshot_filter filter = {.tenant = "t1", .limit = 10};
    g_autoptr(GPtrArray) list = sp_store_snapshot_list(f->store, &filter, NULL);
    g_assert_cmpint(list->len, ==, 0);
    g_assert_true(sp_store_snapshot_delete(f->store, "t1", made.resource_id, NULL, op, NULL));
    g_assert_cmpint(fixture_operation(f, op, NULL), ==, SP_OPERATION_SUCCEEDED);

    /* no worker: it fails by the clock, and what there may be of it is to be removed */
    made = take(f, id);
    struct sp_sweep_result result;
    int64_t now = sp_time_now_ms();
    g_assert_true(sp_store_sweep(f->store, now + 29 * MINUTE, &result, NULL));
    g_assert_cmpint(result.timed_out, ==, 0);
    g_assert_true(sp_store_sweep(f->store, now + 31 * MINUTE, &result, NULL));
    g_assert_cmpint(state_of(f, made.resource_id), ==, SP_SNAPSHOT_FAILED);
    g_assert_cmpint(told(f, 0).removed, ==, 1);
    report(f, made.resource_id, SP_SNAPSHOT_DELETED);
    g_assert_cmpint(state_of(f, made.resource_id), ==, SP_SNAPSHOT_FAILED);
    g_assert_true(sp_store_sweep(f->store, now + 25 * HOUR, &result, NULL));
    g_assert_cmpint(state_of(f, made.resource_id), ==, SP_SNAPSHOT_DELETED); /* forgotten */

    /* an overdue removal stays wanted; asked again, it has a new operation */
    made = take(f, id);
    report(f, made.resource_id, SP_SNAPSHOT_READY);
    char again[SP_ID_MAX];
    g_assert_true(sp_store_snapshot_delete(f->store, "t1", made.resource_id, NULL, op, NULL));
    g_assert_true(sp_store_sweep(f->store, now + 2 * HOUR, &result, NULL));
    g_assert_cmpint(fixture_operation(f, op, NULL), ==, SP_OPERATION_FAILED);
    g_assert_cmpint(told(f, 0).removed, ==, 1);
    g_assert_true(sp_store_snapshot_delete(f->store, "t1", made.resource_id, NULL, again, NULL));
    g_assert_cmpstr(op, !=, again);
    /* also when nobody remembers the old one */
    g_assert_true(sp_store_sweep(f->store, now + 4 * HOUR, &result, NULL));
    g_assert_true(sp_store_sweep(f->store, now + 60 * HOUR, &result, NULL));
    g_assert_null(sp_store_operation_get(f->store, "t1", again, NULL));
    g_assert_true(sp_store_snapshot_delete(f->store, "t1", made.resource_id, NULL, again, NULL));
    report(f, made.resource_id, SP_SNAPSHOT_DELETED);
    g_assert_cmpint(fixture_operation(f, again, NULL), ==, SP_OPERATION_SUCCEEDED);
}

static GArray *fork_of(struct fixture *f, const char *id, int64_t count)
{
    struct sp_fork_request request = {.count = count, .memory = true};
    GArray *children = NULL;
    g_autoptr(GError) error = NULL;
    sp_store_sandbox_fork(f->store, "t1", id, &request, NULL, &children, &error);
    g_assert_no_error(error);
    g_assert_cmpint(children->len, ==, count);
    return children;
}

#define CHILD(list, i) (&g_array_index(list, struct sp_fork_child, i))

static void test_fork(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f);
    int64_t before = told(f, 0).revision;
    g_autoptr(GArray) children = fork_of(f, id, 3);
    struct told t = told(f, before);
    g_assert_cmpint(t.taken, ==, 1);
    g_assert_cmpint(t.sandboxes, ==, 0); /* not before the snapshot is there */
    g_assert_cmpint(told(f, 0).sandboxes, ==, 1);
    g_assert_null(sp_store_snapshot_get(f->store, "t1", t.snapshot_id, NULL)); /* no user sees it */

    fixture_reopen(f);
    report(f, t.snapshot_id, SP_SNAPSHOT_READY);
    g_assert_cmpint(told(f, t.revision).sandboxes, ==, 3);
    fixture_report(f, CHILD(children, 0)->sandbox_id, 1, SP_STATE_RUNNING);
    fixture_report(f, CHILD(children, 1)->sandbox_id, 1, SP_STATE_FAILED);
    g_assert_cmpint(told(f, 0).removed, ==, 0); /* the last child needs it */
    char op[SP_ID_MAX];
    g_assert_true(sp_store_sandbox_delete(f->store, "t1", CHILD(children, 2)->sandbox_id, NULL,
                                          NULL, op, NULL));
    g_assert_cmpint(told(f, 0).removed, ==, 0); /* its worker may be reading it still */
    fixture_report(f, CHILD(children, 2)->sandbox_id, 2, SP_STATE_DELETED);
    g_assert_cmpint(told(f, 0).removed, ==, 1);
    report(f, t.snapshot_id, SP_SNAPSHOT_DELETED);
    g_assert_cmpint(told(f, 0).removed, ==, 0);
    static const enum sp_operation_state ends[] = {SP_OPERATION_SUCCEEDED, SP_OPERATION_FAILED,
                                                   SP_OPERATION_FAILED};
    for (unsigned i = 0; i < 3; i++)
        g_assert_cmpint(fixture_operation(f, CHILD(children, i)->operation_id, NULL), ==, ends[i]);
    /* the steps of the snapshot are part of the child's */
    struct sp_operation_row *row =
        sp_store_operation_get(f->store, "t1", CHILD(children, 0)->operation_id, NULL);
    g_assert_cmpstr(row->steps, ==, "[1]");
    sp_operation_row_free(row);
}

/* A server that was away when the last child ended: the sweep finds what is left. */
static void test_fork_released_by_the_sweep(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f);
    g_autoptr(GArray) children = fork_of(f, id, 1);
    struct told t = told(f, 0);
    char op[SP_ID_MAX];
    g_assert_true(sp_store_sandbox_delete(f->store, "t1", CHILD(children, 0)->sandbox_id, NULL,
                                          NULL, op, NULL));
    fixture_report(f, CHILD(children, 0)->sandbox_id, 2, SP_STATE_DELETED);
    report(f, t.snapshot_id, SP_SNAPSHOT_READY); /* nobody waits for it any more */
    g_assert_cmpint(told(f, 0).removed, ==, 1);
    struct sp_sweep_result result;
    g_assert_true(sp_store_sweep(f->store, sp_time_now_ms(), &result, NULL));
    g_assert_cmpint(told(f, 0).removed, ==, 1);
}

static void test_fork_without_snapshot(struct fixture *f, gconstpointer data)
{
    for (int how = 0; how < 4; how++) { /* failed; origin deleted; origin failed; by the clock */
        g_autofree char *id = running(f);
        g_autoptr(GArray) children = fork_of(f, id, 2);
        struct told t = told(f, 0);
        char op[SP_ID_MAX], *code = NULL;
        struct sp_sweep_result result;
        if (how == 0)
            report(f, t.snapshot_id, SP_SNAPSHOT_FAILED);
        else if (how == 1)
            g_assert_true(sp_store_sandbox_delete(f->store, "t1", id, NULL, NULL, op, NULL));
        else if (how == 2)
            fixture_report(f, id, 1, SP_STATE_FAILED);
        else
            g_assert_true(sp_store_sweep(f->store, sp_time_now_ms() + 31 * MINUTE, &result, NULL));
        static const char *const codes[] = {"internal", "conflict", "internal", "unavailable"};
        for (unsigned i = 0; i < 2; i++) {
            struct sp_sandbox_row *s = fixture_sandbox(f, CHILD(children, i)->sandbox_id);
            g_assert_cmpint(s->state, ==, SP_STATE_FAILED);
            sp_sandbox_row_free(s);
            g_assert_cmpint(fixture_operation(f, CHILD(children, i)->operation_id, &code), ==,
                            SP_OPERATION_FAILED);
            g_assert_cmpstr(code, ==, codes[how]);
            g_clear_pointer(&code, g_free);
        }
        report(f, t.snapshot_id, SP_SNAPSHOT_READY); /* the worker had it all the same */
        g_assert_cmpint(told(f, 0).removed, ==, 1);
        report(f, t.snapshot_id, SP_SNAPSHOT_DELETED);
        g_assert_cmpint(told(f, 0).removed, ==, 0);
        if (how != 1)
            g_assert_true(sp_store_sandbox_delete(f->store, "t1", id, NULL, NULL, op, NULL));
    }
}

static void test_tree(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f);
    struct sp_replay chain[3];
    for (size_t i = 0; i < G_N_ELEMENTS(chain); i++) {
        chain[i] = take(f, id);
        report(f, chain[i].resource_id, SP_SNAPSHOT_READY);
    }
    struct sp_snapshot_row *middle =
        sp_store_snapshot_get(f->store, "t1", chain[1].resource_id, NULL);
    g_assert_cmpstr(middle->parent_id, ==, chain[0].resource_id);
    g_assert_cmpstr(middle->env, ==, "{\"K\":\"secret\"}");
    struct sp_sandbox_request request = {
        .template_ref = (char *)"x:y", .on_idle = SP_ON_IDLE_NONE, .idle_timeout_ms = HOUR};
    struct sp_sandbox_new new = {.tenant = "t1",
                                 .request = &request,
                                 .node = "local",
                                 .template_digest = DIGEST,
                                 .isolation = SP_ISOLATION_CONTAINER,
                                 .isolation_reason = "as the snapshot",
                                 .snapshot = middle};
    struct sp_replay child, refused;
    g_assert_true(sp_store_sandbox_create(f->store, &new, NULL, &child, NULL));
    g_autoptr(GError) error = NULL;
    char op[SP_ID_MAX];
    g_assert_false(sp_store_snapshot_delete(f->store, "t1", middle->id, NULL, op, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_CONFLICT);
    g_clear_error(&error);
    fixture_report(f, child.resource_id, 1, SP_STATE_RUNNING);
    g_assert_true(sp_store_snapshot_delete(f->store, "t1", middle->id, NULL, op, NULL));
    g_assert_false(sp_store_sandbox_create(f->store, &new, NULL, &refused, &error)); /* too late */
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    struct sp_snapshot_row *last =
        sp_store_snapshot_get(f->store, "t1", chain[2].resource_id, NULL);
    g_assert_cmpstr(last->parent_id, ==, chain[0].resource_id);
    struct sp_sandbox_row *s = fixture_sandbox(f, child.resource_id);
    g_assert_cmpstr(s->parent_snapshot_id, ==, chain[0].resource_id);
    g_assert_cmpstr(s->env, ==, "{\"K\":\"secret\"}");
    g_assert_null(s->saved_from);
    sp_sandbox_row_free(s);
    sp_snapshot_row_free(last);
    sp_snapshot_row_free(middle);
}

static void test_tenants(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f);
    struct sp_replay made = take(f, id), none;
    struct sp_snapshot_request request = {.memory = true};
    struct sp_fork_request fork = {1, true};
    GArray *children = NULL;
    char op[SP_ID_MAX];
    report(f, made.resource_id, SP_SNAPSHOT_READY);
    g_assert_null(sp_store_snapshot_get(f->store, "t2", made.resource_id, NULL));
    g_assert_false(sp_store_snapshot_delete(f->store, "t2", made.resource_id, NULL, op, NULL));
    g_assert_false(sp_store_snapshot_create(f->store, "t2", id, &request, NULL, &none, NULL));
    g_assert_false(sp_store_sandbox_fork(f->store, "t2", id, &fork, NULL, &children, NULL));
    struct sp_snapshot_filter filter = {.tenant = "t2", .limit = 10};
    g_autoptr(GPtrArray) list = sp_store_snapshot_list(f->store, &filter, NULL);
    g_assert_cmpint(list->len, ==, 0);
    /* of another node it is not heard */
    struct sp_snapshot_report gone = {.id = made.resource_id, .state = SP_SNAPSHOT_DELETED};
    g_assert_true(sp_store_snapshot_delete(f->store, "t1", made.resource_id, NULL, op, NULL));
    g_assert_true(sp_store_snapshot_report(f->store, "other", &gone, 1, NULL));
    g_assert_cmpint(state_of(f, made.resource_id), ==, SP_SNAPSHOT_DELETING);
}

static char *head_of(struct fixture *f, const char *id)
{
    struct sp_sandbox_row *s = fixture_sandbox(f, id);
    char *head = g_strdup(s->head_snapshot_id);
    sp_sandbox_row_free(s);
    return head;
}

/* A worker repeats its reports (after its restart, for one): only the first one of a rollback moves
 * the sandbox in the tree. */
static void test_repeated_report_of_a_rollback(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f);
    struct sp_replay first = take(f, id), second;
    char op[SP_ID_MAX];
    report(f, first.resource_id, SP_SNAPSHOT_READY);
    struct sp_change_new rollback = {.change = SP_CHANGE_ROLLBACK,
                                     .snapshot_id = first.resource_id};
    g_assert_true(sp_store_sandbox_change(f->store, "t1", id, &rollback, NULL, op, NULL));
    fixture_report(f, id, 2, SP_STATE_RUNNING);
    second = take(f, id);
    report(f, second.resource_id, SP_SNAPSHOT_READY);
    fixture_report(f, id, 2, SP_STATE_RUNNING);
    g_autofree char *head = head_of(f, id);
    g_assert_cmpstr(head, ==, second.resource_id);
    g_assert_true(sp_store_snapshot_delete(f->store, "t1", first.resource_id, NULL, op, NULL));
    g_assert_true(sp_store_snapshot_delete(f->store, "t1", second.resource_id, NULL, op, NULL));
    fixture_report(f, id, 2, SP_STATE_RUNNING);
    g_autofree char *none = head_of(f, id);
    g_assert_null(none);
}

#define ADD(path, fn) g_test_add(path, struct fixture, NULL, set_up, fn, fixture_tear_down)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("/snapshots/life", test_life);
    ADD("/snapshots/failures", test_failures);
    ADD("/snapshots/fork", test_fork);
    ADD("/snapshots/fork_released_by_the_sweep", test_fork_released_by_the_sweep);
    ADD("/snapshots/fork_without_snapshot", test_fork_without_snapshot);
    ADD("/snapshots/tree", test_tree);
    ADD("/snapshots/repeated_report_of_a_rollback", test_repeated_report_of_a_rollback);
    ADD("/snapshots/tenants", test_tenants);
    return g_test_run();
}
