#include "store/postgres/ddl.h"

#include <string.h>

char *sp_pg_ddl_translate(const char *sql)
{
    if (!g_str_has_prefix(sql, "CREATE TABLE") && !g_str_has_prefix(sql, "ALTER TABLE"))
        return NULL;
    g_autoptr(GString) out = g_string_sized_new(strlen(sql) + 256);
    bool quoted = false;
    for (const char *p = sql; *p; p++) {
        g_string_append_c(out, *p);
        if (*p == '\'')
            quoted = !quoted;
        /* the word TEXT, whose last letter has just been taken over */
        if (!quoted && p - sql >= 5 && memcmp(p - 4, " TEXT", 5) == 0 &&
            !(g_ascii_isalnum(p[1]) || p[1] == '_'))
            g_string_append(out, " COLLATE \"C\"");
    }
    return g_string_free(g_steal_pointer(&out), FALSE);
}
