/* What a database back end provides; see db.h for the meaning. */
#pragma once

#include "store/db.h"

struct sp_db_ops {
    const char
        *now_ms_sql; /* an expression: the database's clock, in milliseconds since the epoch */
    struct sp_db *(*open)(const char *where, GError **error);
    void (*close)(struct sp_db *db);
    struct sp_db_tx *(*begin)(struct sp_db *db, enum sp_db_mode mode, GError **error);
    bool (*commit)(struct sp_db_tx *tx, GError **error);
    void (*rollback)(struct sp_db_tx *tx);
    struct sp_db_rows *(*query)(struct sp_db_tx *tx, const char *sql,
                                const struct sp_db_value *values, unsigned n_values,
                                GError **error);
    int (*next)(struct sp_db_rows *rows, GError **error);
    const char *(*text)(struct sp_db_rows *rows, unsigned column);
    int64_t (*integer)(struct sp_db_rows *rows, unsigned column);
    int64_t (*changed)(struct sp_db_rows *rows); /* by the statement, after next() gave 0 */
    void (*rows_free)(struct sp_db_rows *rows);
    /* NULL when the database is this process's alone: there is nothing to check, nobody to tell. */
    bool (*check_table)(struct sp_db_tx *tx, const char *table, GError **error);
    void (*listen)(struct sp_db *db, sp_db_heard heard, void *user);
    void (*notify)(struct sp_db *db, const char *topic);
};

/* First member of a back end's own structs. */
struct sp_db {
    const struct sp_db_ops *ops;
};
struct sp_db_tx {
    const struct sp_db_ops *ops;
};
struct sp_db_rows {
    const struct sp_db_ops *ops;
};

extern const struct sp_db_ops sp_db_sqlite_ops;
extern const struct sp_db_ops sp_db_postgres_ops;
