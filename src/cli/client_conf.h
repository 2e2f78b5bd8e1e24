/*
 * client.conf: where the server is and with which key. `space up` writes it, the client verbs read
 * it.
 *
 * Lines "url: …", "key: …" and "data_url: …", mode 0600; empty lines and lines with # are ignored.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

struct sp_client_conf {
    char *url;      /* "http://127.0.0.1:7070" */
    char *key;      /* "sk_…" */
    char *data_url; /* origin that attachment tokens may be sent to; NULL: not configured */
};

/* Reads the file's text. Fails when url or key is missing or a line is of another form. */
bool sp_client_conf_parse(const char *text, struct sp_client_conf *ret, GError **error);
/* SP_ERROR_NOT_FOUND when there is no file. */
bool sp_client_conf_load(const char *path, struct sp_client_conf *ret, GError **error);
/* Writes it anew: a temporary file, fsync, rename. */
bool sp_client_conf_save(const char *path, const struct sp_client_conf *conf, GError **error);
void sp_client_conf_clear(struct sp_client_conf *conf);

/* What a client verb uses: SPACE_URL and SPACE_KEY (SPACE_DATA_URL), else client.conf in state_dir
 * (NULL: the default one). data_url of the file is taken along when SPACE_URL is the file's url. */
bool sp_client_conf_resolve(const char *state_dir, struct sp_client_conf *ret, GError **error);
