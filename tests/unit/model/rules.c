/* The small pure rules: tiers, headers, cursors, names of templates. */
#include <glib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "model/cursor.h"
#include "model/idempotency.h"
#include "model/isolation.h"
#include "model/operation.h"
#include "model/template.h"

static void test_isolation(void)
{
    static const struct {
        const char *wanted;
        bool untrusted, container, microvm;
        const char *detail;
        const char *choice; /* NULL: an error with code */
        enum sp_error_code code;
    } rows[] = {
        {"auto", false, true, true, "kvm", "microvm", 0},
        {"auto", false, true, true, "KVM, 12 ms", "microvm", 0},
        {"auto", false, true, true, "tcg (no kvm)", "container", 0},
        {"auto", false, true, true, "kvmless", "container", 0},
        {"auto", false, true, false, "kvm hangs", "container", 0},
        {"auto", true, true, true, "tcg", "microvm", 0},
        {"auto", true, true, false, "no qemu", NULL, SP_ERROR_UNSUPPORTED},
        {"auto", false, false, true, "tcg", NULL, SP_ERROR_UNSUPPORTED},
        {"container", false, true, true, "kvm", "container", 0},
        {"container", true, true, true, "kvm", NULL, SP_ERROR_INVALID_REQUEST},
        {"microvm", false, true, false, "no qemu", NULL, SP_ERROR_UNSUPPORTED},
        {"gvisor", false, true, true, "kvm", NULL, SP_ERROR_UNSUPPORTED},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct sp_tier tiers[] = {
            {SP_ISOLATION_CONTAINER, rows[i].container, .detail = (char *)"why not"},
            {SP_ISOLATION_MICROVM, rows[i].microvm, .detail = (char *)rows[i].detail},
        };
        enum sp_isolation wanted, choice;
        const char *reason = NULL;
        g_autoptr(GError) error = NULL;
        g_test_message("row %zu", i);
        g_assert_true(sp_isolation_parse(rows[i].wanted, &wanted));
        bool ok =
            sp_isolation_choose(wanted, rows[i].untrusted, tiers, 2, &choice, &reason, &error);
        if (rows[i].choice) {
            g_assert_no_error(error);
            g_assert_cmpstr(sp_isolation_names[choice], ==, rows[i].choice);
            g_assert_nonnull(reason);
        } else {
            g_assert_false(ok);
            g_assert_error(error, SP_ERROR, (int)rows[i].code);
            if (!rows[i].microvm && strcmp(rows[i].wanted, "container") != 0)
                g_assert_nonnull(strstr(error->message, "no qemu"));
        }
    }
}

/* Not known yet is not "does not work": the worker makes the create wait for the trial. */
static void test_isolation_being_tried(void)
{
    struct sp_tier tiers[] = {{SP_ISOLATION_MICROVM, .probing = true}};
    enum sp_isolation choice;
    const char *reason = NULL;
    g_autoptr(GError) error = NULL;
    g_assert_true(
        sp_isolation_choose(SP_ISOLATION_MICROVM, false, tiers, 1, &choice, &reason, &error));
    g_assert_cmpint(choice, ==, SP_ISOLATION_MICROVM);
    tiers[0].probing = false;
    g_assert_false(
        sp_isolation_choose(SP_ISOLATION_MICROVM, false, tiers, 1, &choice, &reason, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
}

static void test_memory_of_tiers(void)
{
    static const char tiers[] = "[{\"tier\":\"container\",\"save_memory\":false,"
                                "\"save_memory_detail\":\"there is no CRIU\"},"
                                "{\"tier\":\"microvm\",\"save_memory\":true},"
                                "{\"tier\":\"gvisor\",\"probing\":true},{\"tier\":\"new\"},7]";
    g_assert_null(sp_tier_no_memory(tiers, SP_ISOLATION_MICROVM));
    g_assert_null(sp_tier_no_memory(tiers, SP_ISOLATION_GVISOR)); /* its worker will know */
    g_autofree char *why = sp_tier_no_memory(tiers, SP_ISOLATION_CONTAINER);
    g_assert_nonnull(strstr(why, "there is no CRIU"));
    g_autofree char *unknown = sp_tier_no_memory("[]", SP_ISOLATION_MICROVM);
    g_assert_nonnull(unknown);
    g_autofree char *junk = sp_tier_no_memory("no json", SP_ISOLATION_MICROVM);
    g_assert_nonnull(junk);
    g_autoptr(GError) error = NULL;
    sp_tier_set_no_memory_error(&error, SP_ISOLATION_CONTAINER, why);
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
    g_assert_cmpstr(sp_error_field(error), ==, "/memory");
    g_assert_nonnull(strstr(error->message, "CRIU 4.2"));
}

static void test_idempotency_hash(void)
{
    static const struct {
        const char *method, *path, *body;
        bool same;
    } rows[] = {
        {"POST", "/a", "{\"x\":1,\"y\":[1,2]}", true},
        {"POST", "/a", "{ \"y\" : [1, 2], \"x\" : 1 }", true},
        {"POST", "/a", "{\"x\":1,\"y\":[2,1]}", false},
        {"POST", "/a", "{\"x\":\"1\",\"y\":[1,2]}", false},
        {"POST", "/b", "{\"x\":1,\"y\":[1,2]}", false},
        {"PATCH", "/a", "{\"x\":1,\"y\":[1,2]}", false},
        {"POST", "/a", "{}", false},
    };
    char first[SP_HASH_HEX] = "";
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        char hash[SP_HASH_HEX];
        g_autoptr(json_t) body = sp_json_parse(rows[i].body, strlen(rows[i].body), NULL);
        sp_idempotency_hash(rows[i].method, rows[i].path, body, hash);
        if (i == 0)
            g_strlcpy(first, hash, sizeof first);
        g_assert_cmpint(strcmp(first, hash) == 0, ==, rows[i].same);
    }
    char none[SP_HASH_HEX], empty[SP_HASH_HEX];
    g_autoptr(json_t) object = json_object();
    sp_idempotency_hash("DELETE", "/a", NULL, none);
    sp_idempotency_hash("DELETE", "/a", object, empty);
    g_assert_cmpstr(none, ==, empty);
}

static void test_prefer(void)
{
    static const struct {
        const char *header;
        int64_t wait_ms; /* -1: refused */
    } rows[] = {
        {NULL, 0},
        {"", 0},
        {"wait=1", 1000},
        {"wait=600", 600000},
        {"wait=601", -1},
        {"wait=0", -1},
        {"wait=-1", -1},
        {"wait=1s", -1},
        {"wait=", -1},
        {"WAIT=5", 5000},
        {"return=minimal", 0},
        {"return=minimal, wait=7", 7000},
        {"wait=3,wait=9", 3000},
        {"waiting=5", 0},
        {"wait=99999999999999999999", -1},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(GError) error = NULL;
        int64_t wait_ms = -1;
        g_test_message("%s", rows[i].header ? rows[i].header : "(none)");
        sp_prefer_parse(rows[i].header, &wait_ms, &error);
        g_assert_cmpint(wait_ms, ==, rows[i].wait_ms);
        g_assert_cmpint(error != NULL, ==, rows[i].wait_ms < 0);
    }
}

static void test_cursor(void)
{
    char id[SP_ID_MAX], back[SP_CURSOR_MAX];
    for (int i = 0; i < 100; i++) {
        sp_id_new("sbx", id);
        g_autofree char *cursor = sp_cursor_encode(id);
        g_assert_null(strpbrk(cursor, "+/="));
        g_assert_true(sp_cursor_decode(cursor, "sbx", back, NULL));
        g_assert_cmpstr(back, ==, id);
        g_assert_false(sp_cursor_decode(cursor, "op", back, NULL));
    }
    for (unsigned len = 1; len < 20; len++) { /* every length of padding */
        g_autofree char *word = g_strnfill(len, 'w');
        g_autofree char *cursor = sp_cursor_encode(word);
        g_assert_true(sp_cursor_decode(cursor, NULL, back, NULL));
        g_assert_cmpstr(back, ==, word);
    }
    g_autofree char *huge = g_strnfill(100000, 'A');
    const char *bad[] = {"", "x", "====", "MTo", "!!!!", huge};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++)
        g_assert_false(sp_cursor_decode(bad[i], NULL, back, NULL));
}

static void test_template_ref(void)
{
    static const struct {
        const char *text, *name, *tag;
    } good[] = {
        {"seed", "seed", "latest"}, {"a.b-c_d:1.2_X", "a.b-c_d", "1.2_X"}, {"9:_", "9", "_"}};
    struct sp_template_ref ref;
    for (size_t i = 0; i < G_N_ELEMENTS(good); i++) {
        g_assert_true(sp_template_ref_parse(good[i].text, &ref));
        g_assert_cmpstr(ref.name, ==, good[i].name);
        g_assert_cmpstr(ref.tag, ==, good[i].tag);
        g_assert_cmpstr(ref.digest, ==, "");
    }
    g_autofree char *hex = g_strnfill(64, 'a');
    g_autofree char *digest = g_strconcat("sha256:", hex, NULL);
    g_assert_true(sp_template_ref_parse(digest, &ref));
    g_assert_cmpstr(ref.digest, ==, digest);
    g_autofree char *long_name = g_strnfill(64, 'a');
    const char *bad[] = {"",     ":",   "a:",        "-a",    "A",      "a/b",
                         "../x", "a b", "sha256:aa", "a:b:c", long_name};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++)
        g_assert_false(sp_template_ref_parse(bad[i], &ref));
}

static void test_names(void)
{
    enum sp_state state = SP_STATE_FAILED;
    for (int i = 0; i < SP_N_STATES; i++) {
        enum sp_state back;
        g_assert_true(sp_state_parse(sp_state_names[i], &back));
        g_assert_cmpint(back, ==, i);
    }
    g_assert_false(sp_state_parse("nope", &state));
    g_assert_false(sp_state_parse(NULL, &state));
    g_assert_cmpint(state, ==, SP_STATE_FAILED);
    g_assert_true(sp_session_ended(SP_SESSION_LOST) && !sp_session_ended(SP_SESSION_RUNNING));
    g_assert_true(sp_operation_ended(SP_OPERATION_FAILED) &&
                  !sp_operation_ended(SP_OPERATION_RUNNING));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/rules/isolation", test_isolation);
    g_test_add_func("/rules/isolation_being_tried", test_isolation_being_tried);
    g_test_add_func("/rules/memory_of_tiers", test_memory_of_tiers);
    g_test_add_func("/rules/idempotency_hash", test_idempotency_hash);
    g_test_add_func("/rules/prefer", test_prefer);
    g_test_add_func("/rules/cursor", test_cursor);
    g_test_add_func("/rules/template_ref", test_template_ref);
    g_test_add_func("/rules/names", test_names);
    return g_test_run();
}
