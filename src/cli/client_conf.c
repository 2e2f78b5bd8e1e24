#include "cli/client_conf.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/client_options.h"

#define CONF_MAX_BYTES 65536

bool sp_client_conf_parse(const char *text, struct sp_client_conf *ret, GError **error)
{
    struct sp_client_conf conf = {0};
    struct {
        const char *name;
        char **value;
    } fields[] = {{"url:", &conf.url}, {"key:", &conf.key}, {"data_url:", &conf.data_url}};
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; *line; line++) {
        g_strstrip(*line);
        if (**line == '\0' || **line == '#')
            continue;
        for (size_t i = 0; i < G_N_ELEMENTS(fields); i++) {
            if (!g_str_has_prefix(*line, fields[i].name))
                continue;
            g_free(*fields[i].value);
            *fields[i].value = g_strdup(g_strchug(*line + strlen(fields[i].name)));
        }
    }
    if (conf.url && conf.key && *conf.url && *conf.key) {
        *ret = conf;
        return true;
    }
    g_set_error_literal(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                        "client.conf needs the lines \"url: …\" and \"key: …\"");
    sp_client_conf_clear(&conf);
    return false;
}

bool sp_client_conf_load(const char *path, struct sp_client_conf *ret, GError **error)
{
    g_autofree char *text = NULL;
    gsize len = 0;
    g_autoptr(GError) cause = NULL;
    if (!g_file_get_contents(path, &text, &len, &cause)) {
        bool absent = g_error_matches(cause, G_FILE_ERROR, G_FILE_ERROR_NOENT) ||
                      g_error_matches(cause, G_FILE_ERROR, G_FILE_ERROR_NOTDIR);
        g_set_error(error, SP_ERROR, absent ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, "%s",
                    cause->message);
        return false;
    }
    if (len > CONF_MAX_BYTES || memchr(text, '\0', len)) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "%s is not a client.conf", path);
        return false;
    }
    return sp_client_conf_parse(text, ret, error);
}

bool sp_client_conf_save(const char *path, const struct sp_client_conf *conf, GError **error)
{
    g_autoptr(GString) text = g_string_new(NULL);
    g_string_append_printf(text, "url: %s\nkey: %s\n", conf->url, conf->key);
    if (conf->data_url)
        g_string_append_printf(text, "data_url: %s\n", conf->data_url);
    g_autoptr(GError) cause = NULL;
    if (g_file_set_contents_full(path, text->str, (gssize)text->len,
                                 G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0600,
                                 &cause))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s", cause->message);
    return false;
}

void sp_client_conf_clear(struct sp_client_conf *conf)
{
    g_clear_pointer(&conf->url, g_free);
    g_clear_pointer(&conf->key, g_free);
    g_clear_pointer(&conf->data_url, g_free);
}

static const char *environment(const char *name)
{
    const char *value = g_getenv(name);
    return value && *value ? value : NULL;
}

bool sp_client_conf_resolve(const char *state_dir, struct sp_client_conf *ret, GError **error)
{
    const char *url = state_dir ? NULL : environment("SPACE_URL");
    const char *key = state_dir ? NULL : environment("SPACE_KEY");
    const char *data_url = state_dir ? NULL : environment("SPACE_DATA_URL");
    g_autofree char *path =
        g_build_filename(state_dir ? state_dir : SP_STATE_DIR_DEFAULT, "client.conf", NULL);
    struct sp_client_conf conf = {0};
    g_autoptr(GError) cause = NULL;
    if (!sp_client_conf_load(path, &conf, &cause) && !(url && key)) {
        if (!g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND))
            g_propagate_error(error, g_steal_pointer(&cause));
        else
            g_set_error(error, SP_ERROR, SP_ERROR_UNAUTHENTICATED,
                        "no server is configured: set SPACE_URL and SPACE_KEY, or start `space up` "
                        "(%s does not exist)",
                        path);
        return false;
    }
    /* The file's key and data plane belong to the file's server only. */
    if (url && g_strcmp0(url, conf.url) != 0)
        sp_client_conf_clear(&conf);
    if (!key && !conf.key) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNAUTHENTICATED,
                    "SPACE_URL is set, but SPACE_KEY is not");
        return false;
    }
    ret->url = g_strdup(url ? url : conf.url);
    ret->key = g_strdup(key ? key : conf.key);
    ret->data_url = g_strdup(data_url ? data_url : conf.data_url);
    sp_client_conf_clear(&conf);
    return true;
}
