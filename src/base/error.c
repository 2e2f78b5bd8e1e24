#include "base/error.h"

#include <string.h>

struct field_private {
    char *pointer; /* NULL: not about a field */
};

/* The hooks that GLib's extended errors ask for (GErrorInitFunc and companions). */
typedef struct field_private SpErrorPrivate;

static void sp_error_private_init(SpErrorPrivate *priv)
{
    priv->pointer = NULL;
}

static void sp_error_private_copy(const SpErrorPrivate *from, SpErrorPrivate *to)
{
    to->pointer = g_strdup(from->pointer);
}

static void sp_error_private_clear(SpErrorPrivate *priv)
{
    g_clear_pointer(&priv->pointer, g_free);
}

G_DEFINE_EXTENDED_ERROR(SpError, sp_error)

static const struct {
    const char *name;
    int http_status;
} codes[SP_ERROR_N_CODES] = {
    [SP_ERROR_INVALID_REQUEST] = {"invalid_request", 400},
    [SP_ERROR_UNAUTHENTICATED] = {"unauthenticated", 401},
    [SP_ERROR_PERMISSION_DENIED] = {"permission_denied", 403},
    [SP_ERROR_NOT_FOUND] = {"not_found", 404},
    [SP_ERROR_CONFLICT] = {"conflict", 409},
    [SP_ERROR_IDEMPOTENCY_CONFLICT] = {"idempotency_conflict", 409},
    [SP_ERROR_FAILED_PRECONDITION] = {"failed_precondition", 409},
    [SP_ERROR_QUOTA_EXCEEDED] = {"quota_exceeded", 429},
    [SP_ERROR_RATE_LIMITED] = {"rate_limited", 429},
    [SP_ERROR_PAYLOAD_TOO_LARGE] = {"payload_too_large", 413},
    [SP_ERROR_UNSUPPORTED] = {"unsupported", 409},
    [SP_ERROR_UNAVAILABLE] = {"unavailable", 503},
    [SP_ERROR_INTERNAL] = {"internal", 500},
};

static int code_of(const GError *error)
{
    if (error->domain != SP_ERROR || error->code < 0 || error->code >= SP_ERROR_N_CODES)
        return SP_ERROR_INTERNAL;
    return error->code;
}

const char *sp_error_name(const GError *error)
{
    return codes[code_of(error)].name;
}

int sp_error_http_status(const GError *error)
{
    return codes[code_of(error)].http_status;
}

bool sp_error_code_from_name(const char *name, enum sp_error_code *ret_code)
{
    for (int i = 0; i < SP_ERROR_N_CODES; i++) {
        if (strcmp(codes[i].name, name) == 0) {
            *ret_code = (enum sp_error_code)i;
            return true;
        }
    }
    return false;
}

void sp_error_set_field(GError **error, const char *pointer, const char *format, ...)
{
    if (!error)
        return;
    va_list args;
    va_start(args, format);
    *error = g_error_new_valist(SP_ERROR, SP_ERROR_INVALID_REQUEST, format, args);
    va_end(args);
    sp_error_get_private(*error)->pointer = g_strdup(pointer);
}

void sp_error_set_code_field(GError **error, enum sp_error_code code, const char *pointer,
                             const char *format, ...)
{
    if (!error)
        return;
    va_list args;
    va_start(args, format);
    *error = g_error_new_valist(SP_ERROR, (int)code, format, args);
    va_end(args);
    sp_error_get_private(*error)->pointer = g_strdup(pointer);
}

const char *sp_error_field(const GError *error)
{
    return error->domain == SP_ERROR ? sp_error_get_private(error)->pointer : NULL;
}

void sp_error_prefix_field(GError **error, const char *prefix)
{
    if (!error || !*error || !sp_error_field(*error))
        return;
    SpErrorPrivate *priv = sp_error_get_private(*error);
    char *joined = g_strconcat("/", prefix, priv->pointer, NULL);
    g_free(priv->pointer);
    priv->pointer = joined;
}

void sp_error_set_errno(GError **error, enum sp_error_code code, int errno_value,
                        const char *format, ...)
{
    if (!error)
        return;
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(error, SP_ERROR, (int)code, "%s: %s", text, g_strerror(errno_value));
}
