#include "identity.h"

#include "hold.h"
#include "link.h"
#include "restored.h"

#include <glib.h>
#include <string.h>

/* Only identity_hosts is tested here. */
void link_reply_ok(struct link *l, uint32_t tag)
{
    (void)l;
    (void)tag;
    g_assert_not_reached();
}

void link_reply_error(struct link *l, uint32_t tag, const char *code, const char *message)
{
    (void)l;
    (void)tag;
    (void)code;
    (void)message;
    g_assert_not_reached();
}

bool hold_thaw(struct agent *a)
{
    (void)a;
    g_assert_not_reached();
}

bool restored_set_clock(struct agent *a, uint64_t realtime_ns)
{
    (void)a;
    (void)realtime_ns;
    g_assert_not_reached();
}

void restored_signal(struct agent *a)
{
    (void)a;
    g_assert_not_reached();
}

void restored_new_generation(struct agent *a, bool count)
{
    (void)a;
    (void)count;
    g_assert_not_reached();
}

static void check(const char *old, const char *want)
{
    char out[256];
    size_t len = identity_hosts(old, strlen(old), "box", out, sizeof out);
    g_assert_cmpmem(out, len, want, strlen(want));
}

static void test_hosts(void)
{
    check("127.0.0.1 localhost\n", "127.0.0.1 localhost\n127.0.1.1\tbox\n");
    check("127.0.0.1 localhost", "127.0.0.1 localhost\n127.0.1.1\tbox\n");
    check("127.0.1.1 old\n::1 x\n127.0.1.1\tolder", "::1 x\n127.0.1.1\tbox\n");
    check("127.0.1.10 keep\n127.0.1.1", "127.0.1.10 keep\n127.0.1.1\n127.0.1.1\tbox\n");
    check("", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tbox\n");
}

static void test_does_not_fit(void)
{
    const char old[] = "127.0.0.1 localhost\n";
    size_t want = strlen(old) + strlen("127.0.1.1\tbox\n");
    for (size_t size = 0; size <= want + 1; size++) {
        g_autofree char *out = g_malloc(size ? size : 1);
        size_t len = identity_hosts(old, strlen(old), "box", out, size);
        g_assert_cmpuint(len, ==, size > want ? want : 0);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/hosts/replace", test_hosts);
    g_test_add_func("/hosts/limit", test_does_not_fit);
    return g_test_run();
}
