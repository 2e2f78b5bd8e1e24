#include "exec_plan.h"

#include <glib.h>

/* Encodes and decodes, so that the lists have the form the agent gets. */
static struct sp_msg_start start_of(const char *const *argv, const char *const *env,
                                    const char *cwd, uint8_t *space, size_t size)
{
    struct sp_msg_start m = {.session_id = sp_span_of("s"),
                             .argv = {.count = g_strv_length((char **)argv), .strings = argv},
                             .env = {.count = g_strv_length((char **)env), .strings = env},
                             .cwd = sp_span_of(cwd)},
                        out = {0};
    struct sp_pack p;
    sp_pack_init(&p, space, size);
    sp_msg_start_encode(&p, &m);
    g_assert_true(sp_msg_start_decode(space, p.len, &out));
    return out;
}

static const struct account account = {.name = "user", .home = "/home/user", .shell = "/bin/sh"};

static void test_environment(void)
{
    uint8_t one[4096], two[4096];
    static const char *const argv[] = {"prog", "", "a b", NULL};
    static const char *const defaults[] = {"A=1", "B=1", "HOME=/x", "PATH=/p", NULL};
    static const char *const env[] = {"B=2", "USER=other", "C=", "B=3", NULL};
    struct sp_msg_start def = start_of(argv, defaults, NULL, one, sizeof one);
    struct sp_msg_start start = start_of(argv, env, NULL, two, sizeof two);
    struct exec_plan *plan = exec_plan_new(&def.env, &start, &account);
    g_assert_true(g_strv_equal((const char *const *)plan->argv, argv));
    static const char *const want[] = {"PATH=/p",         "A=1",        "B=3",
                                       "HOME=/home/user", "USER=other", "LOGNAME=user",
                                       "SHELL=/bin/sh",   "C=",         NULL};
    g_assert_true(g_strv_equal((const char *const *)plan->envp, want));
    g_assert_cmpstr(plan->path, ==, "/p");
    g_assert_cmpstr(plan->cwd, ==, "/home/user");
    g_assert_true(plan->cwd_is_home);
    free(plan);
}

static void test_smallest(void)
{
    uint8_t space[4096];
    static const char *const argv[] = {"x", NULL}, *const none[] = {NULL};
    static const struct account empty = {0};
    struct sp_msg_start start = start_of(argv, none, "/d", space, sizeof space);
    struct exec_plan *plan = exec_plan_new(&(struct sp_msg_list){0}, &start, &empty);
    g_assert_cmpstr(plan->path, ==, EXEC_DEFAULT_PATH);
    g_assert_cmpstr(plan->cwd, ==, "/d");
    g_assert_false(plan->cwd_is_home);
    g_assert_cmpuint(g_strv_length(plan->envp), ==, 5);
    free(plan);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/exec-plan/environment", test_environment);
    g_test_add_func("/exec-plan/smallest", test_smallest);
    return g_test_run();
}
