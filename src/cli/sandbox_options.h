/* The options that describe a new sandbox, shared by `space run` and `space create`. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/client.h"
#include "cli/client_options.h"

struct sp_sandbox_options {
    struct sp_client_options client; /* first */
    char *template_ref;
    char *snapshot; /* id or name */
    char *isolation;
    char *name;
    char *user;
    char **env;
    char **metadata;
    double cpus;
    int64_t memory_mb;
    int64_t disk_mb;
    int64_t pids;
    bool untrusted;
};

#define SP_SANDBOX_OFFSET(member) offsetof(struct sp_sandbox_options, member)
/* Rows for an option table whose struct begins with struct sp_sandbox_options. */
/* clang-format off */
#define SP_OPTIONS_SANDBOX                                                                         \
    {"template", 0, SP_OPTION_STRING, SP_SANDBOX_OFFSET(template_ref), "NAME:TAG",               \
     "template to start from (default seed:latest)", 0},                                           \
        {"snapshot", 0, SP_OPTION_STRING, SP_SANDBOX_OFFSET(snapshot), "SNAPSHOT",                 \
         "start from a snapshot instead of a template", 0},                                        \
        {"isolation", 0, SP_OPTION_STRING, SP_SANDBOX_OFFSET(isolation), "TIER",                   \
         "auto, container or microvm (default auto)", 0},                                          \
        {"untrusted", 0, SP_OPTION_FLAG, SP_SANDBOX_OFFSET(untrusted), NULL,                       \
         "the code is not trusted: let auto choose the strongest tier", 0},                        \
        {"name", 'n', SP_OPTION_STRING, SP_SANDBOX_OFFSET(name), "NAME",                           \
         "name that the sandbox can be called by", 0},                                             \
        {"cpus", 0, SP_OPTION_NUMBER, SP_SANDBOX_OFFSET(cpus), "N",                                \
         "processors, also a part of one (default 1)", 0},                                         \
        {"memory", 'm', SP_OPTION_INT, SP_SANDBOX_OFFSET(memory_mb), "MB",                         \
         "memory (default 512)", 1},                                                               \
        {"disk", 0, SP_OPTION_INT, SP_SANDBOX_OFFSET(disk_mb), "MB",                               \
         "writable disk (default 2048)", 1},                                                       \
        {"pids", 0, SP_OPTION_INT, SP_SANDBOX_OFFSET(pids), "N",                                   \
         "processes and threads at once (default 128)", 1},                                        \
        {"metadata", 0, SP_OPTION_LIST, SP_SANDBOX_OFFSET(metadata), "K=V",                        \
         "label to find it by; may be repeated", 0},                                               \
        {"env", 'e', SP_OPTION_LIST, SP_SANDBOX_OFFSET(env), "K=V",                                \
         "environment variable; K alone takes our own value; may be repeated", 0},                 \
        {"user", 'u', SP_OPTION_STRING, SP_SANDBOX_OFFSET(user), "USER",                           \
         "user of the command (default: the template's)", 0}
/* clang-format on */

/* Body of POST /v1/sandboxes: what was given and nothing else. Without defaults_too env and user
 * are left out (a verb that gives them to its command instead). A snapshot's name is looked up.
 * NULL with an error about an option. */
json_t *sp_sandbox_options_body(struct sp_client *api, const struct sp_sandbox_options *options,
                                bool defaults_too, GError **error);

/* Makes the sandbox and waits until it runs: the answer's {sandbox, operation}, the sandbox as it
 * is then. When it fails or is cancelled, whatever was made is deleted again. */
json_t *sp_sandbox_create(struct sp_client *api, json_t *body, struct sp_client_cancel cancel,
                          GError **error);
/* Deletes a sandbox ("/v1/sandboxes/<id>") and waits for the end, at most wait_s. An unknown one is
 * an error SP_ERROR_NOT_FOUND. The answer {operation}. */
json_t *sp_sandbox_delete(struct sp_client *api, const char *path, unsigned wait_s, GError **error);
/* "/v1/sandboxes/<id>" of an answer with a sandbox; NULL when its id is none. Free with g_free().
 */
char *sp_sandbox_path(json_t *answer);
