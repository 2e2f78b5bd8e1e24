#include "driver/microvm/warm_up.h"

#include "base/error.h"
#include "base/json.h"

/* An emulated guest under load needs its time for a first start. */
#define COMMAND_TIMEOUT_MS 60000
#define REQUEST_TIMEOUT_MS 30000
#define MAX_WORDS 64

static const char *const interpreters[][4] = {
    {"/bin/sh", "-c", "ls -la / /usr/bin >/dev/null; cat /etc/passwd >/dev/null", NULL},
    /* Twice: the second run reads what the first one has found worth reading. */
    {"python3", "-c", "import json, os, re, subprocess, sys, random, hashlib, urllib.request",
     NULL},
    {"python3", "-c", "import json, os, re, subprocess, sys, random, hashlib, urllib.request",
     NULL},
    {"node", "-e", "require('fs'); require('http'); require('crypto')", NULL},
};

/* {"ready":["/bin/true"],"user":"user"}: other members are not ours. */
static bool run_ready(struct sp_boot_talk *talk, json_t *config, GError **error)
{
    json_t *ready = json_object_get(config, "ready");
    const char *user = json_string_value(json_object_get(config, "user"));
    size_t words = json_array_size(ready);
    if (words == 0)
        return true;
    if (words > MAX_WORDS) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "ready command is too long");
        return false;
    }
    g_autofree const char **argv = g_new0(const char *, words + 1);
    for (size_t i = 0; i < words; i++) {
        argv[i] = json_string_value(json_array_get(ready, i));
        if (!argv[i]) {
            g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "ready is not a command");
            return false;
        }
    }
    int exit_code;
    g_autoptr(GString) output = g_string_new(NULL);
    if (!sp_boot_talk_run(talk, argv, user, COMMAND_TIMEOUT_MS, output, &exit_code, error))
        return false;
    if (exit_code == 0)
        return true;
    g_autofree char *text = g_utf8_make_valid(output->str, (gssize)MIN(output->len, 300));
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                "the template's ready command %s failed with exit code %d: %s", argv[0], exit_code,
                text);
    return false;
}

bool sp_warm_up(struct sp_boot_talk *talk, const char *config, size_t len, GError **error)
{
    g_autoptr(json_t) value = sp_json_parse(config, len, error);
    if (!value)
        return false;
    const char *user = json_string_value(json_object_get(value, "user"));
    if (!sp_boot_talk_identity(talk, REQUEST_TIMEOUT_MS, error) || !run_ready(talk, value, error))
        return false;
    for (unsigned i = 0; i < G_N_ELEMENTS(interpreters); i++) {
        /* Whether they are there, and what they say, is no matter. */
        if (!sp_boot_talk_run(talk, interpreters[i], user, COMMAND_TIMEOUT_MS, NULL, NULL, error))
            return false;
    }
    return sp_boot_talk_quiesce(talk, REQUEST_TIMEOUT_MS, error);
}
