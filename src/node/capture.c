#include "node/capture.h"

#include <string.h>

void sp_capture_init(struct sp_capture *capture, size_t max_bytes)
{
    *capture = (struct sp_capture){.half = max_bytes / 2, .head = g_byte_array_new()};
}

void sp_capture_clear(struct sp_capture *capture)
{
    g_byte_array_unref(capture->head);
    g_free(capture->tail);
}

static void add_tail(struct sp_capture *capture, const uint8_t *bytes, size_t len)
{
    if (!capture->tail)
        capture->tail = g_malloc(capture->half);
    if (len > capture->half) { /* only its end can stay */
        bytes += len - capture->half;
        len = capture->half;
    }
    size_t first = MIN(len, capture->half - capture->tail_at);
    memcpy(capture->tail + capture->tail_at, bytes, first);
    memcpy(capture->tail, bytes + first, len - first);
    capture->tail_at = (capture->tail_at + len) % capture->half;
    capture->tail_len = MIN(capture->tail_len + len, capture->half);
}

void sp_capture_add(struct sp_capture *capture, const void *bytes, size_t len)
{
    const uint8_t *from = bytes;
    capture->total += len;
    size_t into_head = MIN(len, capture->half - capture->head->len);
    if (into_head > 0)
        g_byte_array_append(capture->head, from, (guint)into_head);
    if (len > into_head)
        add_tail(capture, from + into_head, len - into_head);
}

static bool is_continuation(uint8_t byte)
{
    return (byte & 0xc0) == 0x80;
}

/* Length of the character that begins with this byte, by its first byte alone. */
static size_t char_len(uint8_t lead)
{
    return lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Bytes at the end of the head that begin a character which was cut off. */
static size_t cut_at_end(const uint8_t *bytes, size_t len)
{
    size_t back = 0;
    while (back < 3 && back < len && is_continuation(bytes[len - 1 - back]))
        back++;
    if (back == len)
        return 0;
    return char_len(bytes[len - 1 - back]) > back + 1 ? back + 1 : 0;
}

/* Bytes at the start of the tail that end a character which was cut off. */
static size_t cut_at_start(const uint8_t *bytes, size_t len)
{
    size_t n = 0;
    while (n < 3 && n < len && is_continuation(bytes[n]))
        n++;
    return n;
}

uint8_t *sp_capture_take(const struct sp_capture *capture, size_t *ret_len, size_t *ret_head_len)
{
    size_t head_len = capture->head->len, tail_len = capture->tail_len;
    uint8_t *all = g_malloc(head_len + tail_len + 1);
    if (head_len)
        memcpy(all, capture->head->data, head_len);
    if (tail_len) {
        size_t start = (capture->tail_at + capture->half - tail_len) % capture->half;
        size_t first = MIN(tail_len, capture->half - start);
        memcpy(all + head_len, capture->tail + start, first);
        memcpy(all + head_len + first, capture->tail, tail_len - first);
    }
    bool was_cut = capture->total > head_len + tail_len;
    if (was_cut) {
        size_t end = cut_at_end(all, head_len), start = cut_at_start(all + head_len, tail_len);
        memmove(all + head_len - end, all + head_len + start, tail_len - start);
        head_len -= end;
        tail_len -= start;
    }
    *ret_len = head_len + tail_len;
    *ret_head_len = was_cut ? head_len : *ret_len;
    return all;
}

void sp_capture_to_json(const struct sp_capture *capture, const char *name, json_t *answer,
                        json_t *truncated)
{
    size_t len, head_len;
    g_autofree uint8_t *all = sp_capture_take(capture, &len, &head_len);
    /* The text is always there; where it is not the bytes to the letter (invalid UTF-8 becomes
     * U+FFFD, and a NUL, though valid, is lost by many JSON readers) the exact form stands beside
     * it. */
    json_t *text = json_stringn((const char *)all, len);
    bool exact = text && !memchr(all, 0, len);
    if (!text) {
        g_autofree char *valid = g_utf8_make_valid((const char *)all, (gssize)len);
        text = json_string(valid);
    }
    json_object_set_new(answer, name, text);
    if (!exact) {
        g_autofree char *key = g_strconcat(name, "_base64", NULL);
        g_autofree char *base64 = g_base64_encode(all, len);
        json_object_set_new(answer, key, json_string(base64));
    }
    if (len < capture->total) {
        json_object_set_new(truncated, name,
                            json_pack("{s:I,s:I,s:I}", "total_bytes", (json_int_t)capture->total,
                                      "kept_bytes", (json_int_t)len, "head_bytes",
                                      (json_int_t)head_len));
    }
}
