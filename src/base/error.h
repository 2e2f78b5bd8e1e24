/*
 * Errors of SPACE: GError with the codes of the HTTP API (docs/openapi.yaml, `error.code`).
 *
 * A function that can fail returns bool, a pointer or an fd, and takes a `GError **error` last; on
 * failure its ret_ outputs are untouched. Context is added while unwinding with g_prefix_error().
 * Libraries do not log; the place that decides logs once.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

#define SP_ERROR (sp_error_quark())

enum sp_error_code {
    SP_ERROR_INVALID_REQUEST,
    SP_ERROR_UNAUTHENTICATED,
    SP_ERROR_PERMISSION_DENIED,
    SP_ERROR_NOT_FOUND,
    SP_ERROR_CONFLICT,
    SP_ERROR_IDEMPOTENCY_CONFLICT,
    SP_ERROR_FAILED_PRECONDITION,
    SP_ERROR_QUOTA_EXCEEDED,
    SP_ERROR_RATE_LIMITED,
    SP_ERROR_PAYLOAD_TOO_LARGE,
    SP_ERROR_UNSUPPORTED,
    SP_ERROR_UNAVAILABLE,
    SP_ERROR_INTERNAL,
    SP_ERROR_N_CODES,
};

GQuark sp_error_quark(void);

/* The wire name ("invalid_request") and HTTP status (400) of a code; for a GError of another domain
 * those of SP_ERROR_INTERNAL. */
const char *sp_error_name(const GError *error);
int sp_error_http_status(const GError *error);
/* The code with this wire name; false when there is none. */
bool sp_error_code_from_name(const char *name, enum sp_error_code *ret_code);

/* SP_ERROR_INVALID_REQUEST about one field. pointer is a JSON pointer (RFC 6901) such as
 * "/resources/cpus"; the message gets no prefix. */
void sp_error_set_field(GError **error, const char *pointer, const char *format, ...)
    G_GNUC_PRINTF(3, 4);
/* The same with another code: the value is right, but cannot be had here. */
void sp_error_set_code_field(GError **error, enum sp_error_code code, const char *pointer,
                             const char *format, ...) G_GNUC_PRINTF(4, 5);
/* The JSON pointer of a field error; NULL for all others. Borrowed. */
const char *sp_error_field(const GError *error);
/* Puts "/prefix" in front of the pointer of a field error; does nothing for others. */
void sp_error_prefix_field(GError **error, const char *prefix);

/* Sets an error of `code` with strerror(errno_value) behind the formatted text. */
void sp_error_set_errno(GError **error, enum sp_error_code code, int errno_value,
                        const char *format, ...) G_GNUC_PRINTF(4, 5);
