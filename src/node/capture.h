/*
 * Output of a command for an answer: all of it while it fits, else its first and its last part,
 * with the exact number of bytes that came. Bounded at construction.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sp_capture {
    size_t half; /* largest size of head and of tail, bytes */
    GByteArray *head;
    uint8_t *tail;  /* ring of half bytes, made when the head is full */
    size_t tail_at; /* where the next byte goes */
    size_t tail_len;
    uint64_t total; /* bytes that came */
};

/* Keeps at most max_bytes (even). */
void sp_capture_init(struct sp_capture *capture, size_t max_bytes);
void sp_capture_clear(struct sp_capture *capture);
void sp_capture_add(struct sp_capture *capture, const void *bytes, size_t len);
/* Head and tail in one piece; *ret_head_len is where they join (all of it when nothing was cut).
 * The caller frees. When something was cut and the text is UTF-8, no character is cut in two. */
uint8_t *sp_capture_take(const struct sp_capture *capture, size_t *ret_len, size_t *ret_head_len);
/* Puts name (text) or name_base64 into answer, and name into truncated if something was cut. */
void sp_capture_to_json(const struct sp_capture *capture, const char *name, json_t *answer,
                        json_t *truncated);
