/* on_idle, with the clock set forward. */
#include <string.h>

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

static char *running(struct fixture *f, const char *on_idle)
{
    g_autofree char *body =
        g_strdup_printf("{\"idle_timeout\":\"1h\",\"on_idle\":\"%s\"}", on_idle);
    struct sp_replay made = fixture_create(f, body, NULL);
    fixture_report(f, made.resource_id, 1, SP_STATE_RUNNING);
    return g_strdup(made.resource_id);
}

static struct sp_sweep_result sweep(struct fixture *f, int64_t after_ms)
{
    struct sp_sweep_result result;
    g_assert_true(sp_store_sweep(f->store, sp_time_now_ms() + after_ms, &result, NULL));
    return result;
}

static enum sp_desired desired(struct fixture *f, const char *id)
{
    struct sp_sandbox_row *s = fixture_sandbox(f, id);
    enum sp_desired d = s->desired;
    sp_sandbox_row_free(s);
    return d;
}

static void test_each(struct fixture *f, gconstpointer data)
{
    static const struct {
        const char *on_idle;
        enum sp_desired then;
    } rows[] = {{"suspend", SP_DESIRED_SUSPENDED},
                {"pause", SP_DESIRED_PAUSED},
                {"delete", SP_DESIRED_DELETED},
                {"none", SP_DESIRED_RUNNING}};
    char *ids[G_N_ELEMENTS(rows)];
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++)
        ids[i] = running(f, rows[i].on_idle);
    struct sp_sweep_result early = sweep(f, HOUR - MINUTE);
    g_assert_cmpint(early.idle, ==, 0);
    g_assert_cmpint(early.next_at_ms, <=, sp_time_now_ms() + HOUR);
    g_assert_cmpint(sweep(f, HOUR + MINUTE).idle, ==, 3);
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_assert_cmpint(desired(f, ids[i]), ==, rows[i].then);
        fixture_report(f, ids[i], 2,
                       rows[i].then == SP_DESIRED_PAUSED ? SP_STATE_PAUSED : SP_STATE_SUSPENDED);
        g_free(ids[i]);
    }
    g_assert_cmpint(sweep(f, HOUR + 2 * MINUTE).idle, ==, 0); /* once */
}

static void act(struct fixture *f, const char *id, int64_t attached, int64_t cpu_milli)
{
    struct sp_activity item = {id, attached, cpu_milli};
    g_assert_true(sp_store_activity(f->store, "local", &item, 1, NULL));
}

/* The clock of these sweeps is ahead of the reports': an hour is over for all of them. */
static void test_busy(struct fixture *f, gconstpointer data)
{
    g_autofree char *quiet = running(f, "delete"), *session = running(f, "delete"),
                    *snapshot = running(f, "delete"), *changing = running(f, "delete"),
                    *asleep = running(f, "delete"), *stale = running(f, "delete");
    struct sp_session_new new = {.tenant = "t1",
                                 .sandbox_id = session,
                                 .spec = "{}",
                                 .token = {"hash", sp_time_now_ms() + 60000}};
    struct sp_replay made, taken;
    g_assert_true(sp_store_session_create(f->store, &new, NULL, &made, NULL));
    struct sp_session_report live = {.id = made.resource_id, .state = SP_SESSION_RUNNING};
    g_assert_true(sp_store_session_report(f->store, "local", &live, 1, NULL));
    struct sp_snapshot_request request = {.memory = true};
    g_assert_true(sp_store_snapshot_create(f->store, "t1", snapshot, &request, NULL, &taken, NULL));
    struct sp_change_new suspend = {.change = SP_CHANGE_SUSPEND, .memory = true};
    struct sp_change_new pause = {.change = SP_CHANGE_PAUSE};
    char op[SP_ID_MAX];
    g_assert_true(sp_store_sandbox_change(f->store, "t1", changing, &suspend, NULL, op, NULL));
    g_assert_true(sp_store_sandbox_change(f->store, "t1", asleep, &pause, NULL, op, NULL));
    fixture_report(f, asleep, 2, SP_STATE_PAUSED);
    act(f, stale, 3, 0); /* its worker has fallen silent since */
    struct sp_snapshot_report ready = {.id = taken.resource_id, .state = SP_SNAPSHOT_READY};

    /* 20 minutes are less than every limit of an operation */
    static const char soon[] = "{\"idle_timeout\":\"10s\"}";
    g_autoptr(json_t) body = sp_json_parse(soon, strlen(soon), NULL);
    struct sp_sandbox_patch patch;
    g_assert_true(sp_sandbox_patch_decode(body, &patch, NULL));
    const char *all[] = {quiet, session, snapshot, changing, asleep, stale};
    for (size_t i = 0; i < G_N_ELEMENTS(all); i++)
        g_assert_true(sp_store_sandbox_patch(f->store, "t1", all[i], &patch, NULL, NULL));
    sp_sandbox_patch_clear(&patch);
    sweep(f, 30 * 1000);
    g_assert_cmpint(desired(f, quiet), ==, SP_DESIRED_DELETED);
    g_assert_cmpint(desired(f, stale), ==, SP_DESIRED_RUNNING); /* said so half a minute ago */
    struct sp_sweep_result r = sweep(f, 4 * MINUTE);
    g_assert_cmpint(r.timed_out, ==, 0);
    g_assert_cmpint(desired(f, stale), ==, SP_DESIRED_DELETED);
    g_assert_cmpint(desired(f, session), ==, SP_DESIRED_RUNNING);
    g_assert_cmpint(desired(f, snapshot), ==, SP_DESIRED_RUNNING);
    g_assert_cmpint(desired(f, changing), ==, SP_DESIRED_SUSPENDED);
    g_assert_cmpint(desired(f, asleep), ==, SP_DESIRED_PAUSED); /* it stays as it is */

    live.state = SP_SESSION_EXITED;
    g_assert_true(sp_store_session_report(f->store, "local", &live, 1, NULL));
    g_assert_true(sp_store_snapshot_report(f->store, "local", &ready, 1, NULL));
    sweep(f, 4 * MINUTE);
    g_assert_cmpint(desired(f, session), ==, SP_DESIRED_DELETED);
    g_assert_cmpint(desired(f, snapshot), ==, SP_DESIRED_DELETED);
}

static void test_activity(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f, "suspend");
    struct sp_sandbox_row *s = fixture_sandbox(f, id);
    int64_t before = s->last_active_at_ms;
    g_assert_cmpint(s->attached, ==, 0); /* it has just begun to run */
    sp_sandbox_row_free(s);
    g_usleep(3000);
    act(f, id, 0, SP_BUSY_CPU_MILLI);
    s = fixture_sandbox(f, id);
    g_assert_cmpint(s->last_active_at_ms, ==, before); /* not above the floor */
    g_assert_cmpint(s->cpu_milli, ==, SP_BUSY_CPU_MILLI);
    sp_sandbox_row_free(s);
    act(f, id, 0, SP_BUSY_CPU_MILLI + 1);
    s = fixture_sandbox(f, id);
    g_assert_cmpint(s->last_active_at_ms, >, before);
    sp_sandbox_row_free(s);
    struct sp_activity other = {id, 9, 9};
    g_assert_true(sp_store_activity(f->store, "other", &other, 1, NULL));
    s = fixture_sandbox(f, id);
    g_assert_cmpint(s->attached, ==, 0);
    sp_sandbox_row_free(s);
}

static void fail_change(struct fixture *f, const char *id, int64_t generation)
{
    struct sp_observation seen = {.id = id,
                                  .generation = generation,
                                  .state = SP_STATE_RUNNING,
                                  .error_code = "unavailable",
                                  .error_message = "no space"};
    g_assert_true(sp_store_observe(f->store, "local", &seen, 1, NULL));
}

/* A suspend that fails becomes a pause; a pause that fails is not tried again at once. */
static void test_failing(struct fixture *f, gconstpointer data)
{
    g_autofree char *id = running(f, "suspend");
    sweep(f, HOUR + MINUTE);
    fail_change(f, id, 2);
    struct sp_sandbox_row *s = fixture_sandbox(f, id);
    g_assert_cmpint(s->desired, ==, SP_DESIRED_PAUSED);
    g_assert_cmpint(s->generation, ==, 3);
    g_assert_cmpstr(s->state_reason, ==, "paused instead of suspended: no space");
    sp_sandbox_row_free(s);
    fail_change(f, id, 3);
    g_assert_cmpint(desired(f, id), ==, SP_DESIRED_RUNNING);
    g_assert_cmpint(sweep(f, 5 * MINUTE).idle, ==, 0);
    g_assert_cmpint(sweep(f, HOUR + 20 * MINUTE).idle, ==, 1);
    g_assert_cmpint(desired(f, id), ==, SP_DESIRED_SUSPENDED);
    fixture_report(f, id, 5, SP_STATE_SUSPENDED);
    s = fixture_sandbox(f, id);
    g_assert_cmpstr(s->state_reason, ==, "idle_timeout is over");
    sp_sandbox_row_free(s);
}

#define ADD(path, fn) g_test_add(path, struct fixture, NULL, set_up, fn, fixture_tear_down)

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    ADD("/idle/each", test_each);
    ADD("/idle/busy", test_busy);
    ADD("/idle/activity", test_activity);
    ADD("/idle/failing", test_failing);
    return g_test_run();
}
