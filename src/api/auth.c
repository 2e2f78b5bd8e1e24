#include <string.h>

#include "api/api.h"
#include "base/error.h"

static bool refuse(struct sp_http_request *request, GError **error, const char *why)
{
    sp_http_add_header(request, "WWW-Authenticate", "Bearer");
    g_set_error_literal(error, SP_ERROR, SP_ERROR_UNAUTHENTICATED, why);
    return false;
}

static void key_free(gpointer key)
{
    sp_key_row_free(key);
}

bool sp_api_authorize_key(struct sp_http_request *request, void *user, GError **error)
{
    struct sp_api *api = user;
    const char *bearer = sp_http_bearer(request);
    if (!bearer)
        return refuse(request, error, "an API key is needed: Authorization: Bearer sk_…");
    if (strncmp(bearer, "sk_", 3) != 0) /* attachment tokens and node keys are no API keys */
        return refuse(request, error, "the API key is not valid");
    char hash[SP_HASH_HEX];
    sp_secret_hash(bearer, hash);
    struct sp_key_row *key = sp_store_key_find(api->store, hash, error);
    if (!key) {
        sp_http_add_header(request, "WWW-Authenticate", "Bearer");
        return false;
    }
    sp_http_set_data(request, key, key_free);
    return true;
}

bool sp_api_authorize_node(struct sp_http_request *request, void *user, GError **error)
{
    struct sp_api *api = user;
    const char *bearer = sp_http_bearer(request);
    char hash[SP_HASH_HEX];
    sp_secret_hash(bearer ? bearer : "", hash);
    if (!bearer || !sp_hash_equal(hash, api->node_key_hash))
        return refuse(request, error, "the node key is not valid");
    return true;
}
