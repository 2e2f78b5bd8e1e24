/*
 * Strict JSON: parsing with limits, and decoding into structs by table.
 *
 * A table names each field once; unknown keys, duplicate keys, wrong types and values out of range
 * become an SP_ERROR_INVALID_REQUEST whose field is the JSON pointer of the offender.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

G_DEFINE_AUTOPTR_CLEANUP_FUNC(json_t, json_decref)

enum sp_json_kind {
    SP_JSON_STRING,      /* char *, owned; min and max bound the length in bytes */
    SP_JSON_ENUM,        /* int: the index in choices */
    SP_JSON_BOOL,        /* bool */
    SP_JSON_INT,         /* int64_t within min..max */
    SP_JSON_NUMBER,      /* double within min..max */
    SP_JSON_DURATION,    /* int64_t milliseconds from "30s", within min..max ms */
    SP_JSON_STRING_LIST, /* char **, NULL-terminated, owned (strv); min..max items */
    SP_JSON_STRING_MAP,  /* char **, owned strv of "key=value"; at most max pairs. Keys hold no '='
                          */
    SP_JSON_OBJECT,      /* a struct in place, decoded by sub */
    SP_JSON_RAW,         /* json_t *, a reference of its own */
};

struct sp_json_field {
    const char *name;
    enum sp_json_kind kind;
    size_t offset; /* of the value in the struct */
    double min, max;
    bool required;
    /* Offset of a bool that is set when the field was present (and not null); 0 for none (so the
     * bool may not be the first member). */
    size_t present_offset;
    const struct sp_json_field *sub; /* SP_JSON_OBJECT */
    const char *const *choices;      /* SP_JSON_ENUM, NULL-terminated */
};

/* Parses one JSON value: UTF-8, no duplicate keys, depth at most 32. The caller owns the result. */
json_t *sp_json_parse(const char *text, size_t len, GError **error);

/* Decodes an object into *out by a table ended by a row with a NULL name. Members of *out whose
 * fields are absent or null keep their values (set defaults first; owned defaults are freed when
 * replaced). On failure *out may be partly filled: clear it all the same. */
bool sp_json_decode(json_t *object, const struct sp_json_field *table, void *out, GError **error);

/* Frees and zeroes all owned members that the table names. */
void sp_json_clear(const struct sp_json_field *table, void *out);

/* {"a":"1"} from a strv of "a=1"; NULL gives {}. */
json_t *sp_json_from_map(char *const *pairs);
/* ["a","b"] from a strv; NULL gives []. */
json_t *sp_json_from_strv(char *const *list);
/* A JSON string; invalid UTF-8 is replaced by U+FFFD; NULL gives null. */
json_t *sp_json_text(const char *text);
/* Compact text of a value; free with g_free(). */
char *sp_json_dump(const json_t *value);
