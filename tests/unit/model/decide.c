/* Every combination of what is wanted and what is found, against rules written as properties. */
#include <glib.h>

#include "model/decide.h"

#define GENERATION 5

struct point {
    struct sp_wanted wanted;
    struct sp_found found;
};

static void each(void (*check)(const struct point *p, enum sp_action action))
{
    for (int bits = 0; bits < 32; bits++)
        for (int desired = 0; desired < SP_N_DESIRED; desired++)
            for (int presence = 0; presence < SP_N_PRESENCES; presence++)
                for (int64_t failed = GENERATION - 2; failed <= GENERATION; failed++) {
                    int64_t rollback = bits & 1 ? GENERATION : 0;
                    struct point p = {
                        {bits & 2, (enum sp_desired)desired, GENERATION, rollback},
                        {(enum sp_presence)presence, bits & 4 ? GENERATION : 0, failed,
                         bits & 8 ? GENERATION : 0, bits & 16},
                    };
                    check(&p, sp_decide(&p.wanted, &p.found));
                }
}

static bool is_change(enum sp_action action)
{
    return action >= SP_ACTION_PAUSE && action <= SP_ACTION_ROLLBACK;
}

static void check_laws(const struct point *p, enum sp_action action)
{
    const struct sp_found *f = &p->found;
    enum sp_presence presence = f->presence;
    bool reported = f->reported_generation == GENERATION;
    bool failed = f->failed_generation == GENERATION;
    bool gone = presence == SP_PRESENCE_ABSENT || presence == SP_PRESENCE_PARTIAL ||
                presence == SP_PRESENCE_ENDED;

    g_assert_true(action >= SP_ACTION_NONE && action < SP_N_ACTIONS);
    if (!p->wanted.known) {
        g_assert_cmpint(action, ==, SP_ACTION_NONE); /* unknown is not deleted */
        return;
    }
    if (presence == SP_PRESENCE_UNKNOWN) {
        g_assert_cmpint(action, ==, SP_ACTION_LOOK_AGAIN); /* nothing on a guess */
        return;
    }
    if (p->wanted.desired == SP_DESIRED_DELETED) { /* delete wins over everything */
        if (presence != SP_PRESENCE_ABSENT)
            g_assert_cmpint(action, ==, SP_ACTION_DESTROY);
        else
            g_assert_cmpint(action, ==, reported ? SP_ACTION_NONE : SP_ACTION_REPORT_DELETED);
        return;
    }
    g_assert_cmpint(action, !=, SP_ACTION_REPORT_DELETED);
    if (action == SP_ACTION_CREATE) { /* only from nothing, once, and never over a lost one */
        g_assert_cmpint(presence, ==, SP_PRESENCE_ABSENT);
        g_assert_cmpint(p->wanted.desired, ==, SP_DESIRED_RUNNING);
        g_assert_false(f->was_running || failed);
    }
    if (action == SP_ACTION_DESTROY) /* never something that lives and has not failed */
        g_assert_true((failed && (presence == SP_PRESENCE_PARTIAL || !f->was_running)) ||
                      (gone && !f->was_running));
    if (action == SP_ACTION_FAIL)
        g_assert_true(gone && f->was_running && (!failed || presence == SP_PRESENCE_ENDED));
    if (is_change(action)) { /* once a generation, and only of what is here and whole */
        g_assert_false(failed || gone);
        g_assert_true(action == SP_ACTION_ROLLBACK ||
                      p->wanted.rollback_generation <= f->rollback_generation);
    }
    if (presence == SP_PRESENCE_SUSPENDED || presence == SP_PRESENCE_PAUSED)
        g_assert_true(action != SP_ACTION_DESTROY && action != SP_ACTION_FAIL);
    if (reported) /* nothing is said twice */
        g_assert_true(action != SP_ACTION_REPORT_OBSERVED && action != SP_ACTION_UNSUPPORTED);
}

static void test_laws(void)
{
    each(check_laws);
}

static void test_rows(void)
{
    static const struct {
        enum sp_desired desired;
        enum sp_presence presence;
        bool reported, failed, was_running;
        enum sp_action action;
    } rows[] = {
        {SP_DESIRED_RUNNING, SP_PRESENCE_ABSENT, 0, 0, 0, SP_ACTION_CREATE},
        {SP_DESIRED_RUNNING, SP_PRESENCE_PARTIAL, 0, 0, 0, SP_ACTION_DESTROY},
        {SP_DESIRED_RUNNING, SP_PRESENCE_RUNNING, 0, 0, 0, SP_ACTION_REPORT_OBSERVED},
        {SP_DESIRED_RUNNING, SP_PRESENCE_RUNNING, 1, 0, 1, SP_ACTION_NONE},
        {SP_DESIRED_RUNNING, SP_PRESENCE_ENDED, 1, 0, 1, SP_ACTION_FAIL},
        {SP_DESIRED_RUNNING, SP_PRESENCE_ENDED, 0, 0, 0, SP_ACTION_DESTROY},
        {SP_DESIRED_RUNNING, SP_PRESENCE_ABSENT, 1, 0, 1, SP_ACTION_FAIL},
        {SP_DESIRED_RUNNING, SP_PRESENCE_ABSENT, 0, 1, 0, SP_ACTION_REPORT_OBSERVED},
        {SP_DESIRED_RUNNING, SP_PRESENCE_ABSENT, 1, 1, 0, SP_ACTION_NONE},
        {SP_DESIRED_RUNNING, SP_PRESENCE_PARTIAL, 0, 1, 0, SP_ACTION_DESTROY},
        {SP_DESIRED_RUNNING, SP_PRESENCE_SUSPENDED, 0, 0, 1, SP_ACTION_WAKE},
        {SP_DESIRED_RUNNING, SP_PRESENCE_SUSPENDED, 0, 1, 1, SP_ACTION_REPORT_OBSERVED},
        {SP_DESIRED_RUNNING, SP_PRESENCE_PAUSED, 0, 0, 1, SP_ACTION_RESUME},
        {SP_DESIRED_PAUSED, SP_PRESENCE_RUNNING, 0, 0, 1, SP_ACTION_PAUSE},
        {SP_DESIRED_PAUSED, SP_PRESENCE_RUNNING, 0, 1, 1, SP_ACTION_REPORT_OBSERVED},
        {SP_DESIRED_PAUSED, SP_PRESENCE_SUSPENDED, 0, 0, 1, SP_ACTION_UNSUPPORTED},
        {SP_DESIRED_PAUSED, SP_PRESENCE_ENDED, 0, 1, 1, SP_ACTION_FAIL},
        {SP_DESIRED_SUSPENDED, SP_PRESENCE_PAUSED, 0, 0, 1, SP_ACTION_SUSPEND},
        {SP_DESIRED_SUSPENDED, SP_PRESENCE_SUSPENDED, 0, 0, 1, SP_ACTION_REPORT_OBSERVED},
        {SP_DESIRED_SUSPENDED, SP_PRESENCE_RUNNING, 0, 0, 1, SP_ACTION_SUSPEND},
        {SP_DESIRED_PAUSED, SP_PRESENCE_PAUSED, 1, 0, 1, SP_ACTION_NONE},
        {SP_DESIRED_DELETED, SP_PRESENCE_RUNNING, 0, 0, 1, SP_ACTION_DESTROY},
        {SP_DESIRED_DELETED, SP_PRESENCE_ABSENT, 0, 1, 1, SP_ACTION_REPORT_DELETED},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct sp_wanted wanted = {true, rows[i].desired, GENERATION, 0};
        struct sp_found found = {rows[i].presence, rows[i].reported ? GENERATION : 0,
                                 rows[i].failed ? GENERATION : 0, 0, rows[i].was_running};
        g_test_message("row %zu", i);
        g_assert_cmpstr(sp_action_name(sp_decide(&wanted, &found)), ==,
                        sp_action_name(rows[i].action));
    }
}

/* Following the actions from any start ends, in a few steps, where nothing is to be done; also when
 * every change fails. */
static void step(struct sp_found *f, enum sp_action action, bool changes_fail)
{
    if (changes_fail && is_change(action)) {
        f->failed_generation = f->reported_generation = GENERATION;
        return;
    }
    switch (action) {
    case SP_ACTION_CREATE:
        f->was_running = true;
        /* fall through */
    case SP_ACTION_RESUME:
    case SP_ACTION_WAKE:
        f->presence = SP_PRESENCE_RUNNING;
        break;
    case SP_ACTION_PAUSE:
        f->presence = SP_PRESENCE_PAUSED;
        break;
    case SP_ACTION_ROLLBACK:
        f->rollback_generation = GENERATION;
        /* fall through */
    case SP_ACTION_SUSPEND:
        f->presence = SP_PRESENCE_SUSPENDED;
        break;
    case SP_ACTION_DESTROY:
        f->presence = SP_PRESENCE_ABSENT;
        break;
    case SP_ACTION_FAIL:
        f->presence = SP_PRESENCE_ABSENT;
        f->failed_generation = f->reported_generation = GENERATION;
        break;
    case SP_ACTION_LOOK_AGAIN:
        f->presence = SP_PRESENCE_ENDED;
        break;
    default:
        f->reported_generation = GENERATION;
    }
}

static void follow(const struct point *p, enum sp_action action, bool changes_fail)
{
    struct sp_found found = p->found;
    int left = 6;
    while (action != SP_ACTION_NONE && left-- > 0) {
        step(&found, action, changes_fail);
        action = sp_decide(&p->wanted, &found);
    }
    g_assert_cmpint(action, ==, SP_ACTION_NONE);
    if (p->wanted.known && p->wanted.desired == SP_DESIRED_DELETED)
        g_assert_cmpint(found.presence, ==, SP_PRESENCE_ABSENT);
    /* a change that fails takes nothing away */
    if (p->found.presence == SP_PRESENCE_SUSPENDED && p->wanted.desired != SP_DESIRED_DELETED &&
        changes_fail)
        g_assert_cmpint(found.presence, ==, SP_PRESENCE_SUSPENDED);
}

static void check_ends(const struct point *p, enum sp_action action)
{
    follow(p, action, false);
    follow(p, action, true);
}

static void test_ends(void)
{
    each(check_ends);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/decide/laws", test_laws);
    g_test_add_func("/decide/rows", test_rows);
    g_test_add_func("/decide/every_start_comes_to_rest", test_ends);
    return g_test_run();
}
