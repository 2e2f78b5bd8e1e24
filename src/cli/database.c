#include "cli/database.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "store/where.h"

static char *kept_path(const char *state_dir)
{
    return g_build_filename(state_dir, "database", NULL);
}

static bool check(const char *text, GError **error)
{
    if (strcmp(text, SP_DATABASE_SQLITE) == 0 || sp_where_is_url(text))
        return sp_where_check(text, error);
    g_set_error_literal(
        error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
        "a database is named by a URL, postgresql://USER@HOST/NAME, or \"" SP_DATABASE_SQLITE "\"");
    return false;
}

static char *read_file(const char *path, GError **error)
{
    g_autofree char *text = NULL;
    g_autoptr(GError) cause = NULL;
    if (!g_file_get_contents(path, &text, NULL, &cause)) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "%s", cause->message);
        return NULL;
    }
    if (!check(g_strstrip(text), error)) {
        g_prefix_error(error, "%s: ", path);
        return NULL;
    }
    return g_steal_pointer(&text);
}

bool sp_database_asked(const char *url, const char *file, char **ret, GError **error)
{
    g_autofree char *variable = g_strdup(g_getenv(SP_DATABASE_VARIABLE));
    g_unsetenv(SP_DATABASE_VARIABLE); /* no process that we start needs it */
    if (url && file) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                            "--database and --database-file exclude each other");
        return false;
    }
    char *found = NULL;
    if (file) {
        found = read_file(file, error);
        if (!found)
            return false;
    } else if (url || (variable && variable[0])) {
        if (!check(url ? url : variable, error))
            return false;
        if (url && sp_where_has_password(url)) {
            g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                                "every user of this machine could read the password of --database:"
                                " put the URL into a file (--database-file FILE) or into the"
                                " environment variable " SP_DATABASE_VARIABLE);
            return false;
        }
        found = g_strdup(url ? url : variable);
    }
    *ret = found;
    return true;
}

bool sp_database_kept(const char *state_dir, char **ret, GError **error)
{
    g_autofree char *path = kept_path(state_dir);
    char *url = NULL;
    if (access(path, F_OK) == 0 || errno != ENOENT) {
        url = read_file(path, error);
        if (!url)
            return false;
    }
    *ret = url;
    return true;
}

bool sp_database_keep(const char *state_dir, const char *url, GError **error)
{
    g_autofree char *path = kept_path(state_dir);
    g_autoptr(GError) cause = NULL;
    if (!url) {
        if (unlink(path) == 0 || errno == ENOENT)
            return true;
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "cannot remove %s", path);
        return false;
    }
    g_autofree char *line = g_strconcat(url, "\n", NULL);
    if (g_file_set_contents_full(path, line, -1,
                                 G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0600,
                                 &cause))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s", cause->message);
    return false;
}

/* Run directories: what a worker has of sandboxes, which only their own database knows. */
static bool has_sandboxes(const char *state_dir)
{
    g_autofree char *path = g_build_filename(state_dir, "run", "sandboxes", NULL);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    return dir && g_dir_read_name(dir);
}

/* NULL: the file of the state directory. */
static bool same(const char *a, const char *b)
{
    return a && b ? sp_where_same(a, b) : a == b;
}

bool sp_database_choose(const char *state_dir, const char *asked, char **ret, GError **error)
{
    g_autofree char *kept = NULL;
    if (!sp_database_kept(state_dir, &kept, error))
        return false;
    const char *wanted = !asked ? kept : strcmp(asked, SP_DATABASE_SQLITE) == 0 ? NULL : asked;
    if (!same(kept, wanted) && has_sandboxes(state_dir)) {
        g_autofree char *shown = kept ? sp_where_describe(kept) : g_strdup(SP_DATABASE_SQLITE);
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "the sandboxes of %s are kept in the database %s: end them (`space down`)"
                    " before another one is used",
                    state_dir, shown);
        return false;
    }
    if (wanted && !sp_where_probe(wanted, error))
        return false;
    *ret = g_strdup(wanted);
    return true;
}
