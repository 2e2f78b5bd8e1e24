#include "account.h"

#include <glib.h>

static const char passwd[] = "# comment\n"
                             "root:x:0:0:root:/root:/bin/bash\n"
                             "short:x:1\n"
                             "bad:x:12x:1::/:/bin/sh\n"
                             "minus:x:-1:1::/:/bin/sh\n"
                             "big:x:4294967295:1::/:/bin/sh\n"
                             "user:x:1000:1001:A, B:/home/user:/bin/sh\n"
                             "user:x:2000:2000::/second:/bin/sh\n"
                             "1234:x:77:77::/digits:/bin/sh\n"
                             "colon:x:5:6:a:/h:/bin/sh:more\n"
                             ":x:8:8::/:/bin/sh\n"
                             "last:x:9:9::/last:";

static void test_find(void)
{
    struct account a;
    g_assert_true(account_find(passwd, strlen(passwd), "user", &a));
    g_assert_cmpuint(a.uid, ==, 1000);
    g_assert_cmpuint(a.gid, ==, 1001);
    g_assert_cmpstr(a.home, ==, "/home/user");
    g_assert_cmpstr(a.shell, ==, "/bin/sh");
    g_assert_true(account_find(passwd, strlen(passwd), "2000", &a)); /* by uid */
    g_assert_cmpstr(a.home, ==, "/second");
    g_assert_true(account_find(passwd, strlen(passwd), "last", &a)); /* no line end, no shell */
    g_assert_cmpstr(a.shell, ==, "");
    g_assert_true(account_find(passwd, strlen(passwd), "colon", &a));
    const char *const missing[] = {"",    "use",  "users",      "short",       "bad", "minus",
                                   "big", "1234", "4294967295", "99999999999", "-1",  "x"};
    for (unsigned i = 0; i < G_N_ELEMENTS(missing); i++)
        g_assert_false(account_find(passwd, strlen(passwd), missing[i], &a));
}

/* Every prefix of the file, in a buffer of that size: no read beyond it. */
static void test_truncated(void)
{
    struct account a;
    for (size_t len = 0; len <= strlen(passwd); len++) {
        char *part = g_memdup2(passwd, len);
        (void)account_find(part, len, "last", &a);
        a = (struct account){.name = "user"};
        account_add_groups(part, len, &a);
        g_free(part);
    }
}

static void test_long_fields(void)
{
    struct account a;
    g_autofree char *home = g_strnfill(2000, 'h');
    g_autofree char *text = g_strdup_printf("u:x:1:1::/%s:/bin/sh\nu:x:2:2::/ok:/bin/sh\n", home);
    g_assert_true(account_find(text, strlen(text), "u", &a)); /* what does not fit is passed over */
    g_assert_cmpuint(a.uid, ==, 2);
    const char nul[] = "u:x:1:1::/a\0b:/bin/sh\n";
    g_assert_false(account_find(nul, sizeof nul - 1, "u", &a));
}

static void test_groups(void)
{
    GString *text = g_string_new("own:x:1001:user\nno:x:5:us,users,user2\nx:x:bad:user\n");
    for (int i = 0; i < 100; i++)
        g_string_append_printf(text, "g%d:x:%d:a,user,b\n", i, 3000 + i);
    struct account a = {.gid = 1001, .group_count = 1, .groups = {1001}, .name = "user"};
    account_add_groups(text->str, text->len, &a);
    g_assert_cmpuint(a.group_count, ==, ACCOUNT_GROUPS_MAX);
    g_assert_cmpuint(a.groups[0], ==, 1001);
    g_assert_cmpuint(a.groups[1], ==, 3000);
    g_string_free(text, TRUE);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/account/find", test_find);
    g_test_add_func("/account/truncated", test_truncated);
    g_test_add_func("/account/long-fields", test_long_fields);
    g_test_add_func("/account/groups", test_groups);
    return g_test_run();
}
