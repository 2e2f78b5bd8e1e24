/* What a database back end provides; see db.h for the meaning. */
#pragma once

#include "store/db.h"

struct sp_db_ops {
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
