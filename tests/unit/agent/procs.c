#include "procs.h"

#include "link.h"

#include <glib.h>
#include <unistd.h>

/* procs_reply is tested with the whole agent; here only parsing and reading are. */
struct sp_pack link_begin(struct link *l)
{
    (void)l;
    g_assert_not_reached();
}

void link_commit(struct link *l, uint8_t type, uint32_t tag, const struct sp_pack *payload)
{
    (void)l;
    (void)type;
    (void)tag;
    (void)payload;
    g_assert_not_reached();
}

static void test_parse(void)
{
    struct procs_stat s;
    const char good[] =
        "12 (a) b ) (c) S 7 12 9 0 -1 4194304 1 2 3 4 100 50 0 0 20 0 1 0 99 1000 25 "
        "18446744073709551615 1 1";
    g_assert_true(procs_parse(good, &s));
    g_assert_cmpint(s.pid, ==, 12);
    g_assert_cmpint(s.parent, ==, 7);
    g_assert_cmpint(s.session, ==, 9);
    g_assert_cmpuint(s.cpu_ms, ==, 150u * 1000 / (unsigned)sysconf(_SC_CLK_TCK));
    g_assert_cmpuint(s.rss_bytes, ==, 25u * (unsigned)sysconf(_SC_PAGESIZE));
    g_assert_false(s.zombie);
    g_assert_cmpuint(s.start_ms, ==, 99u * 1000 / (unsigned)sysconf(_SC_CLK_TCK));
    const char *const bad[] = {"", "12", "12 (x", "12 (x)", "12 (x) S", "12 (x) S 1 2 3 a"};
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++)
        g_assert_false(procs_parse(bad[i], &s));
}

static void test_user(void)
{
    const char good[] = "Name:\ta\\nUid:\t0\t0\t0\nState:\tS\nUid:\t7\t7\t7\t8\nGid:\t0\n";
    g_assert_true(procs_status_is_user(good, 7));
    g_assert_false(procs_status_is_user(good, 0));
    g_assert_false(procs_status_is_user("Name:\tx\nUid:\t7\t0\t7\t7\n", 7)); /* set-uid */
    g_assert_false(procs_status_is_user("Name:\tx\nUid:\t0\t7\t7\t7\n", 7));
    g_assert_false(procs_status_is_user("Name:\tx\nUid:\t7\t7\t0\t7\n", 7));
    g_assert_false(procs_status_is_user("Name:\tx\nUid:\t7\t7", 7));
    g_assert_false(procs_status_is_user("", 0));
    g_assert_true(procs_runs_as(getpid(), getuid()));
    g_assert_false(procs_runs_as(getpid(), getuid() + 1));
}

static void test_own(void)
{
    struct procs_stat s;
    g_assert_true(procs_read(getpid(), &s));
    g_assert_cmpint(s.pid, ==, getpid());
    g_assert_cmpint(s.parent, ==, getppid());
    g_assert_cmpuint(s.rss_bytes, >, 0);
    g_assert_false(procs_read(0x7ffffff0, &s));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/procs/parse", test_parse);
    g_test_add_func("/procs/user", test_user);
    g_test_add_func("/procs/own", test_own);
    return g_test_run();
}
