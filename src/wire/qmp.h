/*
 * Lines of the QEMU machine protocol: one JSON object a line, both ways.
 *
 * Format: QEMU docs/interop/qmp-spec.txt (7.2). Bytes only, no I/O. What QEMU says is foreign:
 * lines are bounded, JSON is parsed strictly, and every message must be of exactly one of the four
 * kinds.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Longest line taken, bytes. The longest answer that is asked for (query-machines) is about 30 KiB.
 */
#define SP_QMP_MAX_LINE (256u * 1024u)

enum sp_qmp_kind {
    SP_QMP_GREETING, /* {"QMP":{"version":…,"capabilities":[…]}}: name = package + version, data =
                        "version" */
    SP_QMP_RETURN,   /* {"return":…,"id":n}: data = the value */
    SP_QMP_FAILURE, /* {"error":{"class":…,"desc":…},"id":n}: name = class, text = desc */
    SP_QMP_EVENT,   /* {"event":…,"data":…,"timestamp":…}: name = event, data may be NULL */
};

struct sp_qmp_message {
    enum sp_qmp_kind kind;
    char *name;   /* owned; NULL for RETURN */
    char *text;   /* owned; FAILURE only */
    json_t *data; /* owned reference */
    bool has_id;  /* RETURN and FAILURE: the id was an integer */
    json_int_t id;
};

/* Length of the first line in bytes[0..len), with its newline; 0 when no newline has arrived yet.
 */
size_t sp_qmp_line_length(const char *bytes, size_t len);

/* Parses one line (with or without "\r\n"). On failure (SP_ERROR_INTERNAL) *ret is untouched. */
bool sp_qmp_parse(const char *line, size_t len, struct sp_qmp_message *ret, GError **error);
void sp_qmp_message_clear(struct sp_qmp_message *message);

/* {"execute":name,"arguments":arguments,"id":id} and a newline. Takes the reference to arguments,
 * which may be NULL. Free with g_free(). */
char *sp_qmp_command(const char *name, json_t *arguments, json_int_t id);
