#include <string.h>

#include "base/error.h"
#include "store/postgres/conn.h"

/* NULL when it is malformed. PQconninfoParse()'s own message may quote the URL, so it is dropped.
 */
static PQconninfoOption *parse(const char *url)
{
    char *message = NULL;
    PQconninfoOption *options = PQconninfoParse(url, &message);
    PQfreemem(message);
    return options;
}

static const char *value_of(const PQconninfoOption *options, const char *keyword)
{
    for (; options && options->keyword; options++) {
        if (strcmp(options->keyword, keyword) == 0)
            return options->val && options->val[0] ? options->val : NULL;
    }
    return NULL;
}

bool sp_pg_url_check(const char *url, GError **error)
{
    PQconninfoOption *options = parse(url);
    if (!options)
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                            "the database's URL is malformed: it must be"
                            " postgresql://USER:PASSWORD@HOST:PORT/NAME, with %XX for special"
                            " characters in each part");
    PQconninfoFree(options);
    return options != NULL;
}

char *sp_pg_url_describe(const char *url)
{
    PQconninfoOption *options = parse(url);
    const char *host = value_of(options, "host"), *port = value_of(options, "port");
    const char *name = value_of(options, "dbname");
    if (!host)
        host = value_of(options, "hostaddr");
    char *text = g_strdup_printf("postgresql://%s%s%s/%s", host ? host : "", port ? ":" : "",
                                 port ? port : "", name ? name : "");
    PQconninfoFree(options);
    return text;
}

bool sp_pg_url_has_password(const char *url)
{
    PQconninfoOption *options = parse(url);
    bool has = value_of(options, "password") != NULL || value_of(options, "sslpassword") != NULL;
    PQconninfoFree(options);
    return has;
}

bool sp_pg_url_same(const char *a, const char *b)
{
    static const char *const keywords[] = {"service", "host",   "hostaddr",
                                           "port",    "dbname", "options"};
    PQconninfoOption *x = parse(a), *y = parse(b);
    bool same = x && y;
    for (size_t i = 0; i < G_N_ELEMENTS(keywords); i++)
        same = same && g_strcmp0(value_of(x, keywords[i]), value_of(y, keywords[i])) == 0;
    PQconninfoFree(x);
    PQconninfoFree(y);
    return same;
}
