/*
 * The client's end of one command session on the data plane: its URL, checked, and its token.
 *
 * The token goes to the configured data-plane origin and to the session's exact paths only, over
 * https unless that is this machine itself; never through a proxy and never after a redirect
 * (http/client.h).
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>

#include "cli/client.h"
#include "http/client.h"
#include "os/cleanup.h"

/* Whether an attach URL is what it has to be: http(s), one of the origins (compared by scheme, host
 * and port; with any_port by host alone), path "/v1/attach/<session_id>/events", no query, fragment
 * or user. ret_origin gets "scheme://host:port", free with g_free(). SP_ERROR_PERMISSION_DENIED
 * otherwise. */
bool sp_attach_url_check(const char *url, const char *session_id, const char *const *origins,
                         bool any_port, char **ret_origin, GError **error);

struct sp_attachment;

/* From the answer of POST …/sessions: {session:{id}, attach:{url, token}}. Which origin is allowed:
 * the configured one (sp_client_data_url()); else those that GET /v1/nodes names; else the API's
 * own host. */
struct sp_attachment *sp_attachment_new(struct sp_client *api, json_t *answer, GError **error);
void sp_attachment_free(struct sp_attachment *attachment);
SP_DEFINE_CLEANUP(struct sp_attachment, sp_attachment_free)

const char *sp_attachment_session_id(const struct sp_attachment *attachment);
/* "/v1/attach/<id>/<verb>"; free with g_free(). */
char *sp_attachment_path(const struct sp_attachment *attachment, const char *verb);
/* A client that carries a token that is valid for some time yet (a fresh one is fetched if need
 * be); lives as long as the attachment. Thread-safe. */
struct sp_http_client *sp_attachment_client(struct sp_attachment *attachment);
/* Gets a fresh token after `stale` was refused (nothing to do when another thread has done so
 * already). Thread-safe. */
bool sp_attachment_renew(struct sp_attachment *attachment, struct sp_http_client *stale,
                         GError **error);
/* POST …/signal. At most 5 s. */
bool sp_attachment_signal(struct sp_attachment *attachment, const char *signal, GError **error);
