#include "store/where.h"

#include <string.h>

#include "base/error.h"
#include "store/db.h"
#include "store/postgres/conn.h"

bool sp_where_is_url(const char *where)
{
    return g_str_has_prefix(where, "postgresql://") || g_str_has_prefix(where, "postgres://");
}

bool sp_where_check(const char *where, GError **error)
{
    if (sp_where_is_url(where))
        return sp_pg_url_check(where, error);
    if (!strstr(where, "://"))
        return true;
    g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                        "a database's URL begins with postgresql://");
    return false;
}

bool sp_where_has_password(const char *where)
{
    return sp_where_is_url(where) && sp_pg_url_has_password(where);
}

bool sp_where_same(const char *a, const char *b)
{
    return sp_where_is_url(a) && sp_where_is_url(b) ? sp_pg_url_same(a, b) : strcmp(a, b) == 0;
}

char *sp_where_describe(const char *where)
{
    return sp_where_is_url(where) ? sp_pg_url_describe(where) : g_strdup(where);
}

bool sp_where_probe(const char *where, GError **error)
{
    if (!sp_where_check(where, error))
        return false;
    struct sp_db *db = sp_db_open(where, error);
    sp_db_close(db);
    return db != NULL;
}
