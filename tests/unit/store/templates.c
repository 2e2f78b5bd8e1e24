#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "fixture.h"

static struct sp_replay build(struct fixture *f, const char *name)
{
    g_autoptr(json_t) body = json_pack("{s:s, s:{}}", "name", name, "recipe");
    struct sp_template_request request;
    struct sp_replay made;
    g_assert_true(sp_template_request_decode(body, &request, NULL));
    g_assert_true(sp_store_build_create(f->store, "t1", "local", &request, NULL, &made, NULL));
    sp_template_request_clear(&request);
    return made;
}

static bool report(struct fixture *f, const char *id, enum sp_operation_state state)
{
    bool cancel;
    struct sp_build_report r = {.state = state,
                                .log = "line\n",
                                .digest = DIGEST,
                                .config = "{\"user\":\"user\"}",
                                .size_bytes = 10};
    g_assert_true(sp_store_build_report(f->store, id, &r, &cancel, NULL));
    return cancel;
}

static struct sp_template_row *find(struct fixture *f, const char *text)
{
    struct sp_template_ref ref;
    g_assert_true(sp_template_ref_parse(text, &ref));
    return sp_store_template_get(f->store, &ref, NULL);
}

static bool delete_template(struct fixture *f, const char *text, GError **error)
{
    struct sp_template_ref ref;
    g_assert_true(sp_template_ref_parse(text, &ref));
    return sp_store_template_delete(f->store, &ref, NULL, error);
}

static void test_build(struct fixture *f, gconstpointer data)
{
    struct sp_replay made = build(f, "seed");
    g_assert_null(find(f, "seed"));
    g_assert_false(report(f, made.resource_id, SP_OPERATION_RUNNING));
    g_assert_cmpint(fixture_operation(f, made.operation_id, NULL), ==, SP_OPERATION_RUNNING);
    g_assert_false(report(f, made.resource_id, SP_OPERATION_SUCCEEDED));
    g_assert_false(report(f, made.resource_id, SP_OPERATION_SUCCEEDED)); /* repeated: no harm */
    g_assert_cmpint(fixture_operation(f, made.operation_id, NULL), ==, SP_OPERATION_SUCCEEDED);
    struct sp_template_row *t = find(f, "seed:latest");
    g_assert_cmpstr(t->digest, ==, DIGEST);
    sp_template_row_free(t);
    struct sp_template_ref ref;
    sp_template_ref_parse(DIGEST, &ref);
    struct sp_build_row *b = sp_store_build_find(f->store, &ref, NULL);
    g_assert_cmpstr(b->log, ==, "line\nline\n");
    sp_build_row_free(b);
    struct sp_desired_set set;
    g_assert_true(sp_store_desired(f->store, "local", 0, &set, NULL));
    g_assert_cmpint(set.builds->len, ==, 0);
    sp_desired_set_clear(&set);
}

static void test_new_instance_fails_running_builds(struct fixture *f, gconstpointer data)
{
    struct sp_replay running = build(f, "a"), waiting = build(f, "b");
    report(f, running.resource_id, SP_OPERATION_RUNNING);
    struct sp_node_row node = {.name = (char *)"local",
                               .instance = (char *)"two",
                               .data_url = (char *)"http://127.0.0.1:1",
                               .tiers = (char *)"[]",
                               .templates = (char *)"[]",
                               .lease_expires_at_ms = sp_time_now_ms() + 15000};
    g_assert_true(sp_store_node_register(f->store, &node, NULL));
    g_assert_cmpint(fixture_operation(f, running.operation_id, NULL), ==, SP_OPERATION_FAILED);
    g_assert_cmpint(fixture_operation(f, waiting.operation_id, NULL), ==, SP_OPERATION_PENDING);
    g_assert_true(report(f, running.resource_id, SP_OPERATION_SUCCEEDED)); /* told to cancel */
    g_assert_null(find(f, "a"));
}

static void test_delete(struct fixture *f, gconstpointer data)
{
    g_autoptr(GError) error = NULL;
    report(f, build(f, "one").resource_id, SP_OPERATION_SUCCEEDED);
    report(f, build(f, "two").resource_id, SP_OPERATION_SUCCEEDED);
    struct sp_replay made = fixture_create(f, "{}", NULL); /* uses DIGEST */
    g_assert_true(
        delete_template(f, "one", NULL)); /* a name goes while another one holds the image */
    g_assert_null(find(f, "one"));
    g_assert_false(delete_template(f, "two", &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    struct sp_template_row *t = find(f, "two"); /* a refused delete has changed nothing */
    g_assert_nonnull(t);
    sp_template_row_free(t);
    char op[SP_ID_MAX];
    sp_store_sandbox_delete(f->store, NULL, made.resource_id, NULL, NULL, op, NULL);
    fixture_report(f, made.resource_id, 2, SP_STATE_DELETED);
    g_assert_true(delete_template(f, DIGEST, NULL));
    g_assert_null(find(f, DIGEST));
    g_assert_null(find(f, "two"));
    g_clear_error(&error);
    g_assert_false(delete_template(f, "two", &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
}

static unsigned n_deleted(struct fixture *f)
{
    static const char *const digests[] = {
        "sha256:0000000000000000000000000000000000000000000000000000000000000000", DIGEST, NULL};
    g_auto(GStrv) deleted = sp_store_templates_deleted(f->store, (char *const *)digests, NULL);
    g_assert_nonnull(deleted);
    if (deleted[0])
        g_assert_cmpstr(deleted[0], ==, DIGEST);
    return g_strv_length(deleted);
}

/* Only what was built here and is wanted by nobody any more; never what the server has not heard
 * of. */
static void test_deleted(struct fixture *f, gconstpointer data)
{
    g_assert_cmpuint(n_deleted(f), ==, 0);
    report(f, build(f, "one").resource_id, SP_OPERATION_SUCCEEDED);
    g_assert_cmpuint(n_deleted(f), ==, 0);
    g_assert_true(delete_template(f, "one", NULL));
    g_assert_cmpuint(n_deleted(f), ==, 1);
    struct sp_replay made = fixture_create(f, "{}", NULL); /* had found the template before */
    g_assert_cmpuint(n_deleted(f), ==, 0);
    char op[SP_ID_MAX];
    sp_store_sandbox_delete(f->store, NULL, made.resource_id, NULL, NULL, op, NULL);
    g_assert_cmpuint(n_deleted(f), ==, 0);
    fixture_report(f, made.resource_id, 2, SP_STATE_DELETED);
    g_assert_cmpuint(n_deleted(f), ==, 1);
    struct sp_replay again = build(f, "two"); /* it may give the same image */
    g_assert_cmpuint(n_deleted(f), ==, 0);
    report(f, again.resource_id, SP_OPERATION_SUCCEEDED);
    g_assert_cmpuint(n_deleted(f), ==, 0);
}

#define ADD(path, fn) g_test_add(path, struct fixture, NULL, fixture_set_up, fn, fixture_tear_down)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("/templates/build", test_build);
    ADD("/templates/new_instance_fails_running_builds", test_new_instance_fails_running_builds);
    ADD("/templates/delete", test_delete);
    ADD("/templates/deleted", test_deleted);
    return g_test_run();
}
