#include "fixture.h"

#include <string.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "base/json.h"
#include "base/time.h"

static const char *postgres_url(void)
{
    return g_getenv("SPACE_TEST_POSTGRES");
}

bool fixture_is_postgres(void)
{
    return postgres_url() != NULL;
}

void fixture_sql(const char *sql)
{
    PGconn *conn = PQconnectdb(postgres_url());
    PGresult *result = PQexec(conn, sql);
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        g_error("%s: %s", sql, PQerrorMessage(conn));
    PQclear(result);
    PQfinish(conn);
}

static void drop_schema(const char *name)
{
    g_autofree char *sql = g_strdup_printf("SET client_min_messages = error;"
                                           "DROP SCHEMA IF EXISTS %s CASCADE",
                                           name);
    fixture_sql(sql);
}

char *fixture_empty(struct fixture *f, const char *name)
{
    if (!fixture_is_postgres())
        return g_strdup_printf("%s/%s.db", f->dir, name);
    g_autofree char *sql = g_strconcat("CREATE SCHEMA ", name, NULL);
    drop_schema(name);
    fixture_sql(sql);
    return g_strdup_printf("%s&options=-csearch_path%%3D%s", postgres_url(), name);
}

static void open_store(struct fixture *f)
{
    g_autoptr(GError) error = NULL;
    f->store = sp_store_open(f->where, &error);
    g_assert_no_error(error);
}

void fixture_set_up(struct fixture *f, gconstpointer data)
{
    f->dir = g_dir_make_tmp("space-store-XXXXXX", NULL);
    f->where = fixture_empty(f, "server");
    open_store(f);
    struct sp_node_row node = {.name = (char *)"local",
                               .instance = (char *)"one",
                               .data_url = (char *)"http://127.0.0.1:1",
                               .tiers = (char *)"[]",
                               .templates = (char *)"[]",
                               .lease_expires_at_ms = sp_time_now_ms() + 15000};
    g_assert_true(sp_store_node_register(f->store, &node, NULL));
}

void fixture_tear_down(struct fixture *f, gconstpointer data)
{
    sp_store_close(f->store);
    if (fixture_is_postgres())
        drop_schema("server");
    g_autoptr(GDir) dir = g_dir_open(f->dir, 0, NULL);
    const char *name;
    while ((name = g_dir_read_name(dir))) {
        g_autofree char *path = g_build_filename(f->dir, name, NULL);
        unlink(path);
    }
    rmdir(f->dir);
    g_free(f->where);
    g_free(f->dir);
}

void fixture_reopen(struct fixture *f)
{
    sp_store_close(f->store);
    open_store(f);
}

struct sp_replay fixture_create(struct fixture *f, const char *json, const char *key)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) body = sp_json_parse(json, strlen(json), &error);
    struct sp_sandbox_request request;
    g_assert_true(sp_sandbox_request_decode(body, &request, &error));
    struct sp_idempotency idem = {.key_id = "key_1", .key = key};
    g_autofree char *hash = g_compute_checksum_for_string(G_CHECKSUM_SHA256, json, -1);
    g_strlcpy(idem.hash, hash, sizeof idem.hash);
    struct sp_sandbox_new new = {.tenant = "t1",
                                 .request = &request,
                                 .node = "local",
                                 .template_digest = DIGEST,
                                 .isolation = SP_ISOLATION_CONTAINER,
                                 .isolation_reason = "requested"};
    struct sp_replay made = {0};
    sp_store_sandbox_create(f->store, &new, &idem, &made, &error);
    g_assert_no_error(error);
    sp_sandbox_request_clear(&request);
    return made;
}

void fixture_report(struct fixture *f, const char *id, int64_t generation, enum sp_state state)
{
    struct sp_observation seen = {.id = id, .generation = generation, .state = state};
    g_assert_true(sp_store_observe(f->store, "local", &seen, 1, NULL));
}

struct sp_sandbox_row *fixture_sandbox(struct fixture *f, const char *id)
{
    struct sp_sandbox_row *s = sp_store_sandbox_get_any(f->store, NULL, id, NULL);
    g_assert_nonnull(s);
    return s;
}

enum sp_operation_state fixture_operation(struct fixture *f, const char *id, char **ret_code)
{
    struct sp_operation_row *op = sp_store_operation_get(f->store, "t1", id, NULL);
    g_assert_nonnull(op);
    enum sp_operation_state state = op->state;
    if (ret_code)
        *ret_code = g_strdup(op->error_code);
    sp_operation_row_free(op);
    return state;
}
