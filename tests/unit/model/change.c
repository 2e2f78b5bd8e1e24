/* The rules of docs/lifecycle.md §1, every combination. */
#include <glib.h>
#include <string.h>

#include "base/error.h"
#include "model/change.h"

/* The rules once more, as sentences of the table in the document. */
static enum sp_verdict expected(const struct sp_change_facts *f, enum sp_change change)
{
    bool idle = f->under_way == SP_N_OPERATION_KINDS;
    if (f->desired == SP_DESIRED_DELETED)
        return change == SP_CHANGE_DELETE ? SP_VERDICT_REPEAT : SP_VERDICT_PRECONDITION;
    if (change == SP_CHANGE_DELETE)
        return SP_VERDICT_ALLOWED;
    if (f->state != SP_STATE_RUNNING && f->state != SP_STATE_PAUSED &&
        f->state != SP_STATE_SUSPENDED)
        return SP_VERDICT_PRECONDITION;
    static const enum sp_operation_kind same[SP_N_CHANGES] = {
        [SP_CHANGE_PAUSE] = SP_OPERATION_PAUSE,      [SP_CHANGE_SUSPEND] = SP_OPERATION_SUSPEND,
        [SP_CHANGE_WAKE] = SP_OPERATION_WAKE,        [SP_CHANGE_ROLLBACK] = SP_N_OPERATION_KINDS,
        [SP_CHANGE_SNAPSHOT] = SP_N_OPERATION_KINDS, [SP_CHANGE_FORK] = SP_N_OPERATION_KINDS,
    };
    if (!idle)
        return f->under_way == same[change] ? SP_VERDICT_REPEAT : SP_VERDICT_CONFLICT;
    if ((change == SP_CHANGE_PAUSE && f->state == SP_STATE_PAUSED) ||
        (change == SP_CHANGE_SUSPEND && f->state == SP_STATE_SUSPENDED) ||
        (change == SP_CHANGE_WAKE && f->state == SP_STATE_RUNNING))
        return SP_VERDICT_DONE;
    if (change == SP_CHANGE_PAUSE && f->state == SP_STATE_SUSPENDED)
        return SP_VERDICT_PRECONDITION;
    if (f->saving && change != SP_CHANGE_SNAPSHOT && change != SP_CHANGE_FORK)
        return SP_VERDICT_CONFLICT;
    return SP_VERDICT_ALLOWED;
}

static void test_all(void)
{
    unsigned seen[SP_N_VERDICTS] = {0};
    for (int state = 0; state < SP_N_STATES; state++) {
        for (int desired = 0; desired < SP_N_DESIRED; desired++) {
            for (int kind = 0; kind <= SP_N_OPERATION_KINDS; kind++) {
                for (int saving = 0; saving < 2; saving++) {
                    for (int change = 0; change < SP_N_CHANGES; change++) {
                        struct sp_change_facts f = {(enum sp_state)state, (enum sp_desired)desired,
                                                    (enum sp_operation_kind)kind, saving == 1};
                        enum sp_verdict got = sp_change_decide(&f, (enum sp_change)change);
                        if (got != expected(&f, (enum sp_change)change)) {
                            g_test_message(
                                "state %s desired %s under way %d saving %d: %s gives %d",
                                sp_state_names[state], sp_desired_names[desired], kind, saving,
                                sp_change_names[change], got);
                            g_test_fail();
                        }
                        seen[got]++;
                    }
                }
            }
        }
    }
    for (int v = 0; v < SP_N_VERDICTS; v++)
        g_assert_cmpint(seen[v], >, 0);
}

/* Rows of the document's table, written out. */
static void test_examples(void)
{
    static const struct {
        enum sp_state state;
        enum sp_operation_kind under_way;
        bool saving;
        enum sp_change change;
        enum sp_verdict verdict;
    } rows[] = {
#define REST SP_N_OPERATION_KINDS
        {SP_STATE_RUNNING, REST, false, SP_CHANGE_PAUSE, SP_VERDICT_ALLOWED},
        {SP_STATE_PAUSED, REST, false, SP_CHANGE_PAUSE, SP_VERDICT_DONE},
        {SP_STATE_SUSPENDED, REST, false, SP_CHANGE_PAUSE, SP_VERDICT_PRECONDITION},
        {SP_STATE_PAUSED, REST, false, SP_CHANGE_SUSPEND, SP_VERDICT_ALLOWED},
        {SP_STATE_SUSPENDED, REST, false, SP_CHANGE_WAKE, SP_VERDICT_ALLOWED},
        {SP_STATE_RUNNING, SP_OPERATION_PAUSE, false, SP_CHANGE_PAUSE, SP_VERDICT_REPEAT},
        {SP_STATE_RUNNING, SP_OPERATION_PAUSE, false, SP_CHANGE_WAKE, SP_VERDICT_CONFLICT},
        {SP_STATE_RUNNING, SP_OPERATION_ROLLBACK, false, SP_CHANGE_ROLLBACK, SP_VERDICT_CONFLICT},
        {SP_STATE_RUNNING, SP_OPERATION_SUSPEND, false, SP_CHANGE_FORK, SP_VERDICT_CONFLICT},
        {SP_STATE_RUNNING, REST, true, SP_CHANGE_SUSPEND, SP_VERDICT_CONFLICT},
        {SP_STATE_RUNNING, REST, true, SP_CHANGE_FORK, SP_VERDICT_ALLOWED},
        {SP_STATE_RUNNING, REST, true, SP_CHANGE_WAKE, SP_VERDICT_DONE},
        {SP_STATE_CREATING, SP_OPERATION_CREATE, false, SP_CHANGE_WAKE, SP_VERDICT_PRECONDITION},
        {SP_STATE_FAILED, REST, false, SP_CHANGE_WAKE, SP_VERDICT_PRECONDITION},
        {SP_STATE_FAILED, REST, false, SP_CHANGE_DELETE, SP_VERDICT_ALLOWED},
        {SP_STATE_SUSPENDED, SP_OPERATION_WAKE, true, SP_CHANGE_DELETE, SP_VERDICT_ALLOWED},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct sp_change_facts f = {rows[i].state, SP_DESIRED_RUNNING, rows[i].under_way,
                                    rows[i].saving};
        g_test_message("row %zu", i);
        g_assert_cmpint(sp_change_decide(&f, rows[i].change), ==, rows[i].verdict);
    }
}

static void test_bodies(void)
{
    static const struct {
        const char *text;
        int64_t count; /* 0: refused */
        bool memory;
    } rows[] = {
        {"{}", 1, true},           {"{\"count\":100,\"memory\":false}", 100, false},
        {"{\"count\":101}", 0, 0}, {"{\"count\":0}", 0, 0},
        {"{\"x\":1}", 0, 0},       {"{\"count\":null,\"memory\":null}", 1, true},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(json_t) body = sp_json_parse(rows[i].text, strlen(rows[i].text), NULL);
        struct sp_fork_request r;
        bool ok = sp_fork_request_decode(body, &r, NULL);
        g_assert_cmpint(ok, ==, rows[i].count > 0);
        if (ok) {
            g_assert_cmpint(r.count, ==, rows[i].count);
            g_assert_cmpint(r.memory, ==, rows[i].memory);
        }
    }
    g_autoptr(json_t) name = json_pack("{s:s}", "name", "before-it");
    struct sp_snapshot_request snapshot;
    g_assert_true(sp_snapshot_request_decode(name, &snapshot, NULL));
    g_assert_cmpstr(snapshot.name, ==, "before-it");
    g_assert_true(snapshot.memory);
    sp_snapshot_request_clear(&snapshot);
    g_autoptr(json_t) bad = json_pack("{s:s}", "name", "Before It");
    g_assert_false(sp_snapshot_request_decode(bad, &snapshot, NULL));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/change/all", test_all);
    g_test_add_func("/change/examples", test_examples);
    g_test_add_func("/change/bodies", test_bodies);
    return g_test_run();
}
