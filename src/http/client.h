/*
 * HTTP client on libcurl, for daemons (server ↔ worker) and the CLI: no redirects, no proxy from
 * the environment, http and https only, connections reused. Raises no signals of its own, but the
 * program must ignore SIGPIPE (TLS).
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct sp_http_client;

/* base_url: "http://127.0.0.1:7070"; bearer: sent as Authorization, may be NULL. Thread-safe: each
 * call borrows an idle connection handle or makes one. */
struct sp_http_client *sp_http_client_new(const char *base_url, const char *bearer);
void sp_http_client_free(struct sp_http_client *client);

struct sp_http_call {
    const char *method;
    const char *path; /* with its query, percent-encoded */
    json_t *json;     /* borrowed request body, or NULL */
    const void *body; /* raw body instead of json; body_len bytes */
    size_t body_len;
    const char *const *headers; /* NULL-terminated "Name: value" lines, or NULL */
    int64_t timeout_ms;         /* for the whole call; 0: none (streams) */
    /* While nobody listens at the address, tries again for this long: a daemon that is being
     * restarted. Safe for every method: nothing has been sent. 0: fails at once. */
    int64_t connect_retry_ms;
    /* Streamed answer: gets the body as it arrives (only for a 2xx); false ends the call with
     * SP_ERROR_UNAVAILABLE. NULL: the body is collected (at most 64 MiB). */
    bool (*on_data)(void *user, const char *bytes, size_t len);
    /* Streamed upload instead of body: fills up to max bytes, 0 at the end, -1 to abort. */
    ssize_t (*on_upload)(void *user, char *buffer, size_t max);
    /* Asked at least once a second while the call runs (NULL: never), in the caller's thread; true
     * aborts it with SP_ERROR_UNAVAILABLE. A silent connection is noticed up to 1 s late. */
    bool (*cancelled)(void *user);
    void *user;
};

struct sp_http_answer {
    int status;
    GBytes *body; /* owned; NULL when streamed */
};
void sp_http_answer_clear(struct sp_http_answer *answer);

/* Any HTTP answer is true (look at status); false: none came (SP_ERROR_UNAVAILABLE). */
bool sp_http_call(struct sp_http_client *client, const struct sp_http_call *call,
                  struct sp_http_answer *ret, GError **error);

/* The common case: JSON in, JSON out. An answer that is not 2xx becomes the GError that its error
 * body names (code, message, field); NULL then. An empty 2xx body gives {}. request may be NULL;
 * its reference is not taken. ret_status may be NULL. */
json_t *sp_http_call_json(struct sp_http_client *client, const char *method, const char *path,
                          json_t *request, int64_t timeout_ms, int *ret_status, GError **error);
/* The GError that a non-2xx answer stands for. */
void sp_http_answer_to_error(const struct sp_http_answer *answer, GError **error);
