#include <glib.h>
#include <string.h>

#include "base/error.h"
#include "control/placement.h"

#define NOW 1000000
#define HAVE "sha256:aa"
#define CONTAINER                                                                                  \
    "[{\"tier\":\"container\",\"available\":true,\"detail\":\"x\"},{\"tier\":\"new\"},7]"
#define BROKEN "[{\"tier\":\"container\",\"available\":false,\"detail\":\"no cgroups\"}]"

static struct sp_node_row node(const char *name, const char *tiers, const char *templates,
                               int64_t lease)
{
    return (struct sp_node_row){.name = (char *)name,
                                .tiers = (char *)tiers,
                                .templates = (char *)templates,
                                .lease_expires_at_ms = lease};
}

static const char *place(GPtrArray *nodes, GError **error)
{
    struct sp_placement placement;
    return sp_place(nodes, NOW, SP_ISOLATION_CONTAINER, false, HAVE, &placement, error)
               ? placement.node->name
               : NULL;
}

static void test_place(void)
{
    struct sp_node_row dead = node("dead", CONTAINER, "[\"" HAVE "\"]", NOW);
    struct sp_node_row bare = node("bare", CONTAINER, "[]", NOW + 1);
    struct sp_node_row full = node("full", CONTAINER, "[\"sha256:bb\",\"" HAVE "\"]", NOW + 1);
    struct sp_node_row broken = node("broken", BROKEN, "[\"" HAVE "\"]", NOW + 1);
    struct sp_node_row junk = node("junk", "no json", "{", NOW + 1);
    g_autoptr(GPtrArray) nodes = g_ptr_array_new();
    g_autoptr(GError) error = NULL;

    g_assert_null(place(nodes, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_clear_error(&error);
    g_ptr_array_add(nodes, &dead);
    g_assert_null(place(nodes, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_assert_null(sp_place_any(nodes, NOW));
    g_clear_error(&error);
    g_ptr_array_add(nodes, &junk);
    g_ptr_array_add(nodes, &broken);
    g_assert_null(place(nodes, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
    g_clear_error(&error);
    g_ptr_array_add(nodes, &bare);
    g_assert_cmpstr(place(nodes, &error), ==, "bare"); /* better than none */
    g_assert_no_error(error);
    g_ptr_array_add(nodes, &full);
    g_assert_cmpstr(place(nodes, &error), ==, "full");
}

/* What starts from a snapshot can only start where the snapshot is. */
static void test_place_on(void)
{
    struct sp_node_row dead = node("dead", CONTAINER, "[]", NOW);
    struct sp_node_row broken = node("broken", BROKEN, "[]", NOW + 1);
    struct sp_node_row good = node("good", CONTAINER, "[]", NOW + 1);
    g_autoptr(GPtrArray) nodes = g_ptr_array_new();
    g_ptr_array_add(nodes, &dead);
    g_ptr_array_add(nodes, &broken);
    g_ptr_array_add(nodes, &good);
    static const struct {
        const char *name;
        int code; /* -1: it is placed */
    } rows[] = {{"dead", SP_ERROR_UNAVAILABLE},
                {"unknown", SP_ERROR_UNAVAILABLE},
                {"broken", SP_ERROR_UNSUPPORTED},
                {"good", -1}};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct sp_placement placement;
        g_autoptr(GError) error = NULL;
        bool ok = sp_place_on(nodes, NOW, rows[i].name, SP_ISOLATION_CONTAINER, &placement, &error);
        g_assert_cmpint(ok, ==, rows[i].code < 0);
        if (ok)
            g_assert_cmpstr(placement.node->name, ==, rows[i].name);
        else
            g_assert_error(error, SP_ERROR, rows[i].code);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/placement/place", test_place);
    g_test_add_func("/placement/place_on", test_place_on);
    return g_test_run();
}
