/* Names of templates, and the body of POST /v1/templates. */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>

#define SP_TEMPLATE_NAME_MAX 64 /* bytes of a name or tag, with its NUL */
#define SP_DIGEST_MAX 72        /* "sha256:" + 64 hex digits, with its NUL */

/* "seed:latest", "seed" (tag latest) or "sha256:…". */
struct sp_template_ref {
    char name[SP_TEMPLATE_NAME_MAX]; /* "" when it is a digest */
    char tag[SP_TEMPLATE_NAME_MAX];
    char digest[SP_DIGEST_MAX]; /* "" when it is a name */
};
/* false: not of this form. name is [a-z0-9][a-z0-9._-]*, tag [A-Za-z0-9_][A-Za-z0-9._-]*. */
bool sp_template_ref_parse(const char *text, struct sp_template_ref *ret);
bool sp_digest_valid(const char *text);

struct sp_template_request {
    char *name;
    char *tag;      /* default "latest" */
    json_t *recipe; /* an object; the worker knows what may be in it */
    bool no_cache;
};
bool sp_template_request_decode(json_t *body, struct sp_template_request *ret, GError **error);
void sp_template_request_clear(struct sp_template_request *request);
