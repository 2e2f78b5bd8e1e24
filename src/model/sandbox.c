#include "model/sandbox.h"

#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "model/template.h"
#include "wire/agent_msg.h"

#define SECOND_MS 1000.0
#define DAY_MS (24 * 3600 * SECOND_MS)
#define MAX_ENV 256
/* With the 8 KiB of a template (disk/recipe.c) less than SP_MSG_LISTS_BYTES_MAX: the agent gets
 * both in one frame. */
#define MAX_ENV_BYTES (48 * 1024)
#define MAX_METADATA 64

#define AT(member) offsetof(struct sp_sandbox_request, member)
#define PATCH_AT(member) offsetof(struct sp_sandbox_patch, member)

static const struct sp_json_field resources_table[] = {
    {"cpus", SP_JSON_NUMBER, offsetof(struct sp_resources, cpus), 0.1, 64},
    {"memory_mb", SP_JSON_INT, offsetof(struct sp_resources, memory_mb), 64, 262144},
    {"disk_mb", SP_JSON_INT, offsetof(struct sp_resources, disk_mb), 64, 1048576},
    {"pids", SP_JSON_INT, offsetof(struct sp_resources, pids), 8, 32768},
    {NULL},
};
/* Decoded into the request itself, hence the offset 0 of "network" below. */
static const struct sp_json_field network_table[] = {
    {"allow", SP_JSON_STRING_LIST, AT(network_allow), 0, 256},
    {"deny_private", SP_JSON_BOOL, AT(deny_private)},
    {NULL},
};
static const struct sp_json_field request_table[] = {
    {"template", SP_JSON_STRING, AT(template_ref), 1, 160, .present_offset = AT(template_set)},
    {"snapshot_id", SP_JSON_STRING, AT(snapshot_id), 1, 64},
    {"isolation", SP_JSON_ENUM, AT(isolation), .choices = sp_isolation_names,
     .present_offset = AT(isolation_set)},
    {"untrusted", SP_JSON_BOOL, AT(untrusted), .present_offset = AT(untrusted_set)},
    {"resources", SP_JSON_OBJECT, AT(resources), .sub = resources_table,
     .present_offset = AT(resources_set)},
    {"env", SP_JSON_STRING_MAP, AT(env), 0, MAX_ENV},
    {"metadata", SP_JSON_STRING_MAP, AT(metadata), 0, MAX_METADATA},
    {"network", SP_JSON_OBJECT, 0, .sub = network_table},
    {"user", SP_JSON_STRING, AT(user), 1, 64},
    {"idle_timeout", SP_JSON_DURATION, AT(idle_timeout_ms), 10 * SECOND_MS, 30 * DAY_MS,
     .present_offset = AT(idle_timeout_set)},
    {"on_idle", SP_JSON_ENUM, AT(on_idle), .choices = sp_on_idle_names},
    {"max_lifetime", SP_JSON_DURATION, AT(max_lifetime_ms), 10 * SECOND_MS, 365 * DAY_MS,
     .present_offset = AT(max_lifetime_set)},
    {"name", SP_JSON_STRING, AT(name), 1, 63},
    {NULL},
};
static const struct sp_json_field patch_network_table[] = {
    {"allow", SP_JSON_STRING_LIST, PATCH_AT(network_allow), 0, 256},
    {"deny_private", SP_JSON_BOOL, PATCH_AT(deny_private)},
    {NULL},
};
static const struct sp_json_field patch_table[] = {
    {"metadata", SP_JSON_STRING_MAP, PATCH_AT(metadata), 0, MAX_METADATA},
    {"idle_timeout", SP_JSON_DURATION, PATCH_AT(idle_timeout_ms), 10 * SECOND_MS, 30 * DAY_MS,
     .present_offset = PATCH_AT(idle_timeout_set)},
    {"on_idle", SP_JSON_ENUM, PATCH_AT(on_idle), .choices = sp_on_idle_names,
     .present_offset = PATCH_AT(on_idle_set)},
    {"max_lifetime", SP_JSON_DURATION, PATCH_AT(max_lifetime_ms), 10 * SECOND_MS, 365 * DAY_MS,
     .present_offset = PATCH_AT(max_lifetime_set)},
    {"network", SP_JSON_OBJECT, 0, .sub = patch_network_table,
     .present_offset = PATCH_AT(network_set)},
    {"name", SP_JSON_STRING, PATCH_AT(name), 1, 63},
    {NULL},
};

/* An error about one entry of a map: its pointer is at + "/" + key. */
static void set_entry_error(GError **error, const char *at, const char *key, const char *why)
{
    g_auto(GStrv) tilde = g_strsplit(key, "~", -1);
    g_autofree char *no_tilde = g_strjoinv("~0", tilde);
    g_auto(GStrv) slash = g_strsplit(no_tilde, "/", -1);
    g_autofree char *escaped = g_strjoinv("~1", slash);
    g_autofree char *pointer = g_strconcat(at, "/", escaped, NULL);
    sp_error_set_field(error, pointer, "%s: %s", at + 1, why);
}

static bool env_key_valid(const char *key, size_t len)
{
    if (len == 0 || len > 256 || g_ascii_isdigit(key[0]))
        return false;
    for (size_t i = 0; i < len; i++) {
        if (!g_ascii_isalnum(key[i]) && key[i] != '_')
            return false;
    }
    return true;
}

bool sp_check_env(char *const *env, const char *at, GError **error)
{
    size_t total = 0;
    for (; env && *env; env++) {
        const char *eq = strchr(*env, '=');
        size_t len = (size_t)(eq - *env);
        g_autofree char *key = g_strndup(*env, len);
        if (!env_key_valid(key, len)) {
            set_entry_error(error, at, key,
                            "a variable's name must match [A-Za-z_][A-Za-z0-9_]* (at most 256)");
            return false;
        }
        total += strlen(*env) + SP_MSG_ITEM_OVERHEAD;
        if (total > MAX_ENV_BYTES) {
            set_entry_error(error, at, key, "all variables together exceed 48 KiB");
            return false;
        }
    }
    return true;
}

static bool check_metadata(char *const *metadata, GError **error)
{
    for (; metadata && *metadata; metadata++) {
        const char *eq = strchr(*metadata, '=');
        g_autofree char *key = g_strndup(*metadata, (gsize)(eq - *metadata));
        bool plain = strlen(key) <= 64;
        for (const char *c = key; *c; c++)
            plain = plain && (g_ascii_isalnum(*c) || strchr("._-/", *c));
        if (!plain) {
            set_entry_error(error, "/metadata", key,
                            "a key must be 1 to 64 letters, digits, '.', '_', '-' or '/'");
            return false;
        }
        if (strlen(eq + 1) > 1024) {
            set_entry_error(error, "/metadata", key, "a value may have at most 1024 bytes");
            return false;
        }
    }
    return true;
}

bool sp_check_user(const char *user, const char *at, GError **error)
{
    bool ok = !user || g_ascii_isalnum(user[0]) || user[0] == '_';
    for (const char *c = user; ok && c && *c; c++)
        ok = g_ascii_isalnum(*c) || strchr("._-:", *c);
    if (!ok)
        sp_error_set_field(error, at, "user must be a user name, a uid or uid:gid");
    return ok;
}

bool sp_check_name(const char *name, const char *at, GError **error)
{
    bool ok = !name || (*name && strlen(name) <= 63);
    for (const char *c = name; c && *c; c++)
        ok = ok && (g_ascii_islower(*c) || g_ascii_isdigit(*c) || (*c == '-' && c != name));
    if (!ok)
        sp_error_set_field(error, at, "name must match [a-z0-9][a-z0-9-]{0,62}");
    return ok;
}

static bool check_network(char *const *allow, GError **error)
{
    if (!allow || !*allow)
        return true;
    g_set_error_literal(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                        "network.allow: sandboxes have no network in this version; leave the list "
                        "empty or out");
    return false;
}

/* A snapshot is of one template, tier and shape. */
static bool check_snapshot(const struct sp_sandbox_request *r, GError **error)
{
    if (!r->snapshot_id)
        return true;
    const char *at = r->template_set    ? "/template"
                     : r->isolation_set ? "/isolation"
                     : r->untrusted_set ? "/untrusted"
                     : r->resources_set ? "/resources"
                                        : NULL;
    if (at) {
        sp_error_set_field(error, at, "%s comes from the snapshot; leave it out", at + 1);
        return false;
    }
    if (!sp_id_valid(r->snapshot_id, "snp")) {
        sp_error_set_field(error, "/snapshot_id", "there is no snapshot %s", r->snapshot_id);
        return false;
    }
    return true;
}

static bool check_request(const struct sp_sandbox_request *r, GError **error)
{
    struct sp_template_ref ref;
    if (!sp_template_ref_parse(r->template_ref, &ref)) {
        sp_error_set_field(error, "/template",
                           "template must be name:tag or sha256:<64 hex digits>");
        return false;
    }
    return check_snapshot(r, error) && sp_check_name(r->name, "/name", error) &&
           sp_check_user(r->user, "/user", error) && sp_check_env(r->env, "/env", error) &&
           check_metadata(r->metadata, error) && check_network(r->network_allow, error);
}

bool sp_sandbox_request_decode(json_t *body, struct sp_sandbox_request *ret, GError **error)
{
    struct sp_sandbox_request r = {
        .template_ref = g_strdup("seed:latest"),
        .resources = {.cpus = 1, .memory_mb = 512, .disk_mb = 2048, .pids = 128},
        .isolation = SP_ISOLATION_AUTO,
        .on_idle = SP_ON_IDLE_SUSPEND,
        .idle_timeout_ms = (int64_t)(6 * 3600 * SECOND_MS),
        .deny_private = true,
    };
    if (!sp_json_decode(body, request_table, &r, error) || !check_request(&r, error)) {
        sp_sandbox_request_clear(&r);
        return false;
    }
    r.resources.cpus = (double)(int64_t)(r.resources.cpus * 1000 + 0.5) / 1000;
    *ret = r;
    return true;
}

void sp_sandbox_request_clear(struct sp_sandbox_request *request)
{
    sp_json_clear(request_table, request);
}

bool sp_sandbox_patch_decode(json_t *body, struct sp_sandbox_patch *ret, GError **error)
{
    struct sp_sandbox_patch p = {.deny_private = true};
    if (!sp_json_decode(body, patch_table, &p, error) || !sp_check_name(p.name, "/name", error) ||
        !check_metadata(p.metadata, error) || !check_network(p.network_allow, error)) {
        sp_sandbox_patch_clear(&p);
        return false;
    }
    *ret = p;
    return true;
}

void sp_sandbox_patch_clear(struct sp_sandbox_patch *patch)
{
    sp_json_clear(patch_table, patch);
}
