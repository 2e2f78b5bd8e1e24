/*
 * The strict look at a request head, after libmicrohttpd has read it.
 *
 * libmicrohttpd 0.9.75 accepts bare LF, NUL and CR in a head, folded lines, blanks before a colon
 * and several lengths: differences in which a request can be smuggled past a proxy. It parses in
 * place: each line end CR LF becomes two NULs, the first colon of a line one. So the pointers that
 * it hands out show what was in between: in a clean head each name starts exactly two bytes behind
 * the end of the value before it, the first one two bytes behind the version, and the head ends two
 * bytes behind the last (plus the two of the empty line). A NUL cuts a value short, a bare LF is
 * one byte, a folded line is copied elsewhere: all of them break this chain. (A NUL just before a
 * LF reads as CR LF: the same line end for us and for libmicrohttpd, and a value without the NUL.)
 */
#include "http/internal.h"

#include <string.h>

#define MAX_HEADERS 64u

struct walk {
    uintptr_t at;  /* where the next name has to start */
    uintptr_t end; /* of the head */
    unsigned n_headers, n_lengths, n_codings, n_hosts, n_expects;
    const char *coding, *length, *expect;
    const char *problem;
};

static bool is_token(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (!g_ascii_isalnum(text[i]) && !(text[i] && strchr("!#$%&'*+-.^_`|~", text[i])))
            return false;
    }
    return len > 0;
}

static bool is_clean_value(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

static void note_header(struct walk *w, const char *name, const char *value)
{
    if (g_ascii_strcasecmp(name, "Content-Length") == 0) {
        w->n_lengths++;
        w->length = value;
    } else if (g_ascii_strcasecmp(name, "Transfer-Encoding") == 0) {
        w->n_codings++;
        w->coding = value;
    } else if (g_ascii_strcasecmp(name, "Host") == 0) {
        w->n_hosts++;
    } else if (g_ascii_strcasecmp(name, "Expect") == 0) {
        w->n_expects++;
        w->expect = value;
    }
}

static const char *header_problem(struct walk *w, const char *name, size_t name_len,
                                  const char *value, size_t value_len)
{
    if (++w->n_headers > MAX_HEADERS)
        return "more than 64 headers";
    const uintptr_t name_at = (uintptr_t)name, value_at = (uintptr_t)value;
    if (name_at != w->at || value_at < name_at + name_len + 1 || value_at + value_len + 2 > w->end)
        return "a header line with a NUL, a bare line feed or a continuation";
    for (const char *blank = name + name_len + 1; blank < value; blank++) {
        if (*blank != ' ' && *blank != '\t')
            return "a malformed header line";
    }
    if (!is_token(name, name_len))
        return "a malformed header name";
    if (!is_clean_value(value, value_len))
        return "a control character in a header";
    w->at = value_at + value_len + 2;
    note_header(w, name, value);
    return NULL;
}

static enum MHD_Result on_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                 size_t name_len, const char *value, size_t value_len)
{
    struct walk *w = cls;
    w->problem = header_problem(w, name, name_len, value ? value : "", value_len);
    return w->problem ? MHD_NO : MHD_YES;
}

static const char *request_line_problem(const char *method, const char *raw_target,
                                        const char *target_at, const char *version)
{
    const size_t method_len = strlen(method), target_len = strlen(raw_target);
    if (!is_token(method, method_len))
        return "a malformed method";
    if (target_at != method + method_len + 1 || version != target_at + target_len + 1)
        return "a malformed request line";
    for (size_t i = 0; i < target_len; i++) {
        const unsigned char c = (unsigned char)raw_target[i];
        if (c <= 0x20 || c >= 0x7f || c == '#')
            return "a character in the target that must be percent-encoded";
    }
    return NULL;
}

static const char *framing_problem(const struct walk *w, const char *version)
{
    if (w->n_lengths > 1)
        return "more than one Content-Length";
    if (w->n_codings > 1 || (w->n_codings == 1 && w->n_lengths > 0))
        return "Transfer-Encoding together with another length";
    if (w->n_codings == 1 && g_ascii_strcasecmp(w->coding, "chunked") != 0)
        return "a Transfer-Encoding other than chunked";
    if (w->n_codings == 1 && strcmp(version, "HTTP/1.0") == 0)
        return "Transfer-Encoding in HTTP/1.0";
    if (w->n_hosts > 1)
        return "more than one Host";
    if (w->n_expects > 1)
        return "more than one Expect";
    return NULL;
}

bool sp_http_head_check(struct MHD_Connection *connection, const char *method,
                        const char *raw_target, const char *target_at, const char *version,
                        struct sp_http_head *ret, const char **ret_problem)
{
    const union MHD_ConnectionInfo *size =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    struct walk w = {0};
    w.problem =
        size ? request_line_problem(method, raw_target, target_at, version) : "a malformed head";
    if (!w.problem) {
        w.at = (uintptr_t)version + strlen(version) + 2;
        w.end = (uintptr_t)method + size->header_size;
        MHD_get_connection_values_n(connection, MHD_HEADER_KIND, on_header, &w);
    }
    if (!w.problem && w.at + 2 != w.end)
        w.problem = "a header line with a NUL, a bare line feed or a continuation";
    if (!w.problem)
        w.problem = framing_problem(&w, version);
    if (w.problem) {
        *ret_problem = w.problem;
        return false;
    }
    *ret = (struct sp_http_head){
        .chunked = w.n_codings == 1,
        .expects_continue = w.expect && g_ascii_strcasecmp(w.expect, "100-continue") == 0,
        .content_length = w.length ? g_ascii_strtoull(w.length, NULL, 10) : 0,
    };
    return true;
}
