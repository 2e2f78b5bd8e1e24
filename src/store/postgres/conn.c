#include "store/postgres/conn.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/error.h"
#include "base/time.h"

#define OLDEST_VERSION 130000 /* PQserverVersion(): 13.0 */
#define CONNECT_TIMEOUT_S "5"
/* The server ends a statement after STATEMENT_MS; if it has not answered by CALL_MS, it is not
 * there any more. IDLE_MS: how long a transaction of a server that hangs may keep the lock of all
 * others.
 */
#define STATEMENT_MS "10000"
#define IDLE_MS "5000"
#define CALL_MS 12000

#define OID_TEXT 25 /* pg_type.dat */
#define OID_INT8 20
#define MAX_VALUES 64

struct sp_pg_conn {
    PGconn *handle;
    GHashTable *statements; /* types and SQL → name; both owned */
    bool broken;
};

static void ignore_notice(void *user, const PGresult *result)
{
}

/* Errors that go away by themselves, or by another try: SQLSTATE classes of the manual's appendix
 * A. */
static bool passes(const char *state)
{
    static const char *const prefixes[] = {
        "08",    /* connection */
        "40",    /* transaction rollback: serialisation, deadlock */
        "53",    /* resources: too many connections, disk full */
        "57P",   /* shutdown, cannot connect now */
        "57014", /* statement_timeout */
        "55P03", /* lock not available */
        "25006", /* read only: a standby now */
        "25P03", /* idle_in_transaction_session_timeout */
    };
    for (size_t i = 0; state && i < G_N_ELEMENTS(prefixes); i++) {
        if (g_str_has_prefix(state, prefixes[i]))
            return true;
    }
    return false;
}

/* result may be NULL. The primary message only: details can quote values of rows. */
static void set_error(struct sp_pg_conn *conn, const PGresult *result, GError **error)
{
    const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    const char *primary = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    if (PQstatus(conn->handle) != CONNECTION_OK || g_strcmp0(state, "25006") == 0)
        conn->broken = true;
    bool lost = conn->broken || passes(state);
    g_set_error(error, SP_ERROR, lost ? SP_ERROR_UNAVAILABLE : SP_ERROR_INTERNAL, "database: %s",
                primary ? primary : "the connection was lost");
}

static void set_timeout(struct sp_pg_conn *conn, GError **error)
{
    conn->broken = true; /* an answer may still come, and would be taken for that of the next one */
    g_set_error_literal(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                        "database: no answer within " G_STRINGIFY(CALL_MS) " ms");
}

/* Until what was sent is out and a result is complete. */
static bool wait_result(struct sp_pg_conn *conn, int64_t deadline_ms, GError **error)
{
    for (;;) {
        int unsent = PQflush(conn->handle);
        if (unsent < 0) {
            set_error(conn, NULL, error);
            return false;
        }
        if (unsent == 0 && !PQisBusy(conn->handle))
            return true;
        int64_t left_ms = deadline_ms - sp_time_monotonic_ms();
        if (left_ms <= 0) {
            set_timeout(conn, error);
            return false;
        }
        struct pollfd socket = {.fd = PQsocket(conn->handle),
                                .events = (short)(POLLIN | (unsent ? POLLOUT : 0))};
        int n = poll(&socket, 1, (int)left_ms);
        if (n < 0 && errno != EINTR) {
            conn->broken = true;
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "poll");
            return false;
        }
        if (n > 0 && !PQconsumeInput(conn->handle)) {
            set_error(conn, NULL, error);
            return false;
        }
    }
}

/* The last result of what was sent, or the first that is an error. */
static PGresult *take_result(struct sp_pg_conn *conn, bool sent, GError **error)
{
    int64_t deadline_ms = sp_time_monotonic_ms() + CALL_MS;
    PGresult *kept = NULL;
    bool failed = !sent;
    while (sent) {
        if (!wait_result(conn, deadline_ms, error)) {
            PQclear(kept);
            return NULL;
        }
        PGresult *result = PQgetResult(conn->handle);
        if (!result)
            break;
        if (failed) {
            PQclear(result);
            continue;
        }
        PQclear(kept);
        kept = result;
        ExecStatusType status = PQresultStatus(kept);
        failed = status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK;
    }
    if (!failed && kept)
        return kept;
    set_error(conn, kept, error);
    PQclear(kept);
    return NULL;
}

PGresult *sp_pg_conn_simple(struct sp_pg_conn *conn, const char *sql, GError **error)
{
    return take_result(conn, PQsendQuery(conn->handle, sql) == 1, error);
}

/* The statement's name; prepares it when it is new. Its key has the types: they are fixed at that
 * time. */
static const char *prepare(struct sp_pg_conn *conn, const char *sql, const Oid *types, unsigned n,
                           GError **error)
{
    g_autoptr(GString) key = g_string_sized_new(strlen(sql) + n + 1);
    for (unsigned i = 0; i < n; i++)
        g_string_append_c(key, types[i] == OID_INT8 ? 'i' : 't');
    g_string_append_printf(key, " %s", sql);
    const char *known = g_hash_table_lookup(conn->statements, key->str);
    if (known)
        return known;
    g_autofree char *name = g_strdup_printf("s%u", g_hash_table_size(conn->statements));
    bool sent = PQsendPrepare(conn->handle, name, sql, (int)n, types) == 1;
    PGresult *result = take_result(conn, sent, error);
    if (!result)
        return NULL;
    PQclear(result);
    char *kept = g_steal_pointer(&name);
    g_hash_table_insert(conn->statements, g_strdup(key->str), kept);
    return kept;
}

PGresult *sp_pg_conn_run(struct sp_pg_conn *conn, const char *sql, const struct sp_db_value *values,
                         unsigned n_values, GError **error)
{
    Oid types[MAX_VALUES];
    const char *texts[MAX_VALUES];
    char numbers[MAX_VALUES][24];
    g_assert(n_values <= MAX_VALUES);
    for (unsigned i = 0; i < n_values; i++) {
        types[i] = values[i].kind == SP_DB_INT ? OID_INT8 : OID_TEXT;
        texts[i] = values[i].kind == SP_DB_TEXT ? values[i].text : NULL;
        if (values[i].kind == SP_DB_INT) {
            g_snprintf(numbers[i], sizeof numbers[i], "%" G_GINT64_FORMAT, values[i].integer);
            texts[i] = numbers[i];
        }
    }
    const char *name = prepare(conn, sql, types, n_values, error);
    if (!name)
        return NULL;
    bool sent = PQsendQueryPrepared(conn->handle, name, (int)n_values, texts, NULL, NULL, 0) == 1;
    return take_result(conn, sent, error);
}

static bool check_server(struct sp_pg_conn *conn, GError **error)
{
    if (PQserverVersion(conn->handle) < OLDEST_VERSION) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                            "PostgreSQL 13 or newer is needed");
        return false;
    }
    const char *encoding = PQparameterStatus(conn->handle, "server_encoding");
    if (g_strcmp0(encoding, "UTF8") == 0)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                "the database's encoding is %s; it must be UTF8", encoding ? encoding : "unknown");
    return false;
}

/* Set by SQL: a connection pooler in between knows no start-up options. A database or role that has
 * switched off waiting for the disk gets it back: what is answered as done is done. */
static bool set_up(struct sp_pg_conn *conn, GError **error)
{
    PGresult *result = sp_pg_conn_simple(conn,
                                         "SET statement_timeout = " STATEMENT_MS ";"
                                         "SET idle_in_transaction_session_timeout = " IDLE_MS ";"
                                         "SELECT set_config('synchronous_commit', 'on', false)"
                                         " WHERE current_setting('synchronous_commit') = 'off'",
                                         error);
    PQclear(result);
    return result && PQsetnonblocking(conn->handle, 1) == 0;
}

struct sp_pg_conn *sp_pg_conn_open(const char *url, GError **error)
{
    if (!sp_pg_url_check(url, error))
        return NULL;
    /* A keyword before dbname, which is expanded, is a default that the URL may change; one behind
     * it has the last word (libpq, PQconnectdbParams). */
    static const char *const keywords[] = {"target_session_attrs", "keepalives_idle",
                                           "keepalives_interval",  "keepalives_count",
                                           "tcp_user_timeout",     "fallback_application_name",
                                           "connect_timeout",      "dbname",
                                           "client_encoding",      NULL};
    const char *const values[] = {"read-write",      "30", "5",    "3", "12000", "space",
                                  CONNECT_TIMEOUT_S, url,  "UTF8", NULL};
    G_STATIC_ASSERT(G_N_ELEMENTS(keywords) == G_N_ELEMENTS(values));
    struct sp_pg_conn *conn = g_new0(struct sp_pg_conn, 1);
    conn->statements = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    conn->handle = PQconnectdbParams(keywords, values, 1);
    if (PQstatus(conn->handle) != CONNECTION_OK) {
        /* names host, port, user and database, never a password */
        g_autofree char *why = g_strdelimit(g_strdup(PQerrorMessage(conn->handle)), "\n\t", ' ');
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "cannot reach the database: %s",
                    g_strstrip(why));
        sp_pg_conn_free(conn);
        return NULL;
    }
    PQsetNoticeReceiver(conn->handle, ignore_notice, NULL);
    if (check_server(conn, error) && set_up(conn, error))
        return conn;
    sp_pg_conn_free(conn);
    return NULL;
}

void sp_pg_conn_free(struct sp_pg_conn *conn)
{
    if (!conn)
        return;
    PQfinish(conn->handle);
    g_hash_table_unref(conn->statements);
    g_free(conn);
}

bool sp_pg_conn_broken(const struct sp_pg_conn *conn)
{
    return conn->broken || PQstatus(conn->handle) != CONNECTION_OK;
}

PGconn *sp_pg_conn_handle(struct sp_pg_conn *conn)
{
    return conn->handle;
}
