#include "store/db.h"

#include <stdarg.h>

#include "store/db_backend.h"
#include "store/where.h"

#define MAX_VALUES 40

struct sp_db *sp_db_open(const char *where, GError **error)
{
    const struct sp_db_ops *ops = sp_where_is_url(where) ? &sp_db_postgres_ops : &sp_db_sqlite_ops;
    return ops->open(where, error);
}

const char *sp_db_now_ms_sql(const struct sp_db *db)
{
    return db->ops->now_ms_sql;
}

bool sp_db_shared(const struct sp_db *db)
{
    return db->ops->listen != NULL;
}

void sp_db_listen(struct sp_db *db, sp_db_heard heard, void *user)
{
    if (db->ops->listen)
        db->ops->listen(db, heard, user);
}

void sp_db_notify(struct sp_db *db, const char *topic)
{
    if (db->ops->notify)
        db->ops->notify(db, topic);
}

bool sp_db_check_table(struct sp_db *db, struct sp_db_tx *tx, const char *table, GError **error)
{
    return !db->ops->check_table || db->ops->check_table(tx, table, error);
}

void sp_db_close(struct sp_db *db)
{
    if (db)
        db->ops->close(db);
}

struct sp_db_tx *sp_db_begin(struct sp_db *db, enum sp_db_mode mode, GError **error)
{
    return db->ops->begin(db, mode, error);
}

bool sp_db_commit(struct sp_db_tx *tx, GError **error)
{
    return tx->ops->commit(tx, error);
}

void sp_db_rollback(struct sp_db_tx *tx)
{
    tx->ops->rollback(tx);
}

static unsigned collect(struct sp_db_value *values, const char *format, va_list args)
{
    unsigned n = 0;
    for (const char *f = format; *f; f++, n++) {
        g_assert(n < MAX_VALUES && (*f == 't' || *f == 'i'));
        values[n] = (struct sp_db_value){0};
        if (*f == 'i') {
            values[n].kind = SP_DB_INT;
            values[n].integer = va_arg(args, int64_t);
        } else {
            values[n].text = va_arg(args, const char *);
            values[n].kind = values[n].text ? SP_DB_TEXT : SP_DB_NULL;
        }
    }
    return n;
}

bool sp_db_run(struct sp_db_tx *tx, int64_t *ret_changed, GError **error, const char *sql,
               const char *format, ...)
{
    struct sp_db_value values[MAX_VALUES];
    va_list args;
    va_start(args, format);
    unsigned n = collect(values, format, args);
    va_end(args);

    SP_DB_ROWS_AUTO *rows = tx->ops->query(tx, sql, values, n, error);
    if (!rows)
        return false;
    int got = sp_db_next(rows, error);
    if (got < 0)
        return false;
    g_assert(got == 0); /* a statement with rows is for sp_db_query() */
    if (ret_changed)
        *ret_changed = rows->ops->changed(rows);
    return true;
}

struct sp_db_rows *sp_db_query(struct sp_db_tx *tx, GError **error, const char *sql,
                               const char *format, ...)
{
    struct sp_db_value values[MAX_VALUES];
    va_list args;
    va_start(args, format);
    unsigned n = collect(values, format, args);
    va_end(args);
    return tx->ops->query(tx, sql, values, n, error);
}

struct sp_db_rows *sp_db_query_values(struct sp_db_tx *tx, GError **error, const char *sql,
                                      const struct sp_db_value *values, unsigned n_values)
{
    return tx->ops->query(tx, sql, values, n_values, error);
}

int sp_db_next(struct sp_db_rows *rows, GError **error)
{
    return rows->ops->next(rows, error);
}

const char *sp_db_text(struct sp_db_rows *rows, unsigned column)
{
    return rows->ops->text(rows, column);
}

int64_t sp_db_int(struct sp_db_rows *rows, unsigned column)
{
    return rows->ops->integer(rows, column);
}

void sp_db_rows_free(struct sp_db_rows *rows)
{
    if (rows)
        rows->ops->rows_free(rows);
}

void sp_db_tx_cleanup(struct sp_db_tx **tx)
{
    if (*tx)
        sp_db_rollback(*tx);
}

void sp_db_rows_cleanup(struct sp_db_rows **rows)
{
    sp_db_rows_free(*rows);
}

bool sp_db_commit_auto(struct sp_db_tx **tx, GError **error)
{
    struct sp_db_tx *taken = g_steal_pointer(tx);
    return sp_db_commit(taken, error);
}
