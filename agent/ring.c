#include "ring.h"

#include <stdlib.h>
#include <string.h>

#define RECORD_HEAD 4u /* u32 length of the body */
#define FIRST_ALLOC 1024u
#define FINAL_SLACK 4096u /* what final events may take beyond the capacity */

void ring_init(struct ring *r, struct ring_pool *pool, size_t capacity_bytes)
{
    if (capacity_bytes == 0)
        capacity_bytes = RING_DEFAULT_BYTES;
    if (capacity_bytes < RING_MIN_BYTES)
        capacity_bytes = RING_MIN_BYTES;
    if (capacity_bytes > RING_MAX_BYTES)
        capacity_bytes = RING_MAX_BYTES;
    *r = (struct ring){.pool = pool, .capacity = capacity_bytes, .oldest_id = 1, .next_id = 1};
}

void ring_clear(struct ring *r)
{
    free(r->bytes);
    r->pool->used -= r->allocated;
    *r = (struct ring){0};
}

/* Copies between the ring and a flat buffer, in at most two pieces. */
static void copy_out(const struct ring *r, uint64_t position, uint8_t *to, size_t len)
{
    if (len == 0)
        return;
    size_t at = (size_t)((position - r->base) % r->allocated);
    size_t first = len < r->allocated - at ? len : r->allocated - at;
    memcpy(to, r->bytes + at, first);
    memcpy(to + first, r->bytes, len - first);
}

static void copy_in(struct ring *r, uint64_t position, const uint8_t *from, size_t len)
{
    if (len == 0)
        return;
    size_t at = (size_t)((position - r->base) % r->allocated);
    size_t first = len < r->allocated - at ? len : r->allocated - at;
    memcpy(r->bytes + at, from, first);
    memcpy(r->bytes, from + first, len - first);
}

static size_t body_len_at(const struct ring *r, uint64_t position)
{
    uint8_t head[RECORD_HEAD];
    copy_out(r, position, head, sizeof head);
    return (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
}

static void evict_oldest(struct ring *r)
{
    r->tail += RECORD_HEAD + body_len_at(r, r->tail);
    r->oldest_id++;
    if (r->acked_end < r->tail)
        r->acked_end = r->tail;
}

static bool can_evict(const struct ring *r)
{
    return r->oldest_id <= r->acked && r->oldest_id < r->next_id;
}

/* Moves the records into a buffer of `size` bytes (at least the live ones). */
static bool resize(struct ring *r, size_t size)
{
    uint8_t *bytes = malloc(size);
    if (!bytes)
        return false;
    copy_out(r, r->tail, bytes, (size_t)(r->head - r->tail));
    free(r->bytes);
    r->pool->used = r->pool->used - r->allocated + size;
    r->bytes = bytes;
    r->allocated = size;
    r->base = r->tail;
    return true;
}

/* The largest buffer the ring may have for output now. */
static size_t limit(const struct ring *r)
{
    size_t spare = r->pool->used < r->pool->max ? r->pool->max - r->pool->used : 0;
    size_t most = r->allocated + spare;
    if (most < RING_MIN_BYTES)
        most = RING_MIN_BYTES; /* every session can say something, whatever the others hold */
    return most < r->capacity ? most : r->capacity;
}

size_t ring_room(const struct ring *r)
{
    size_t kept = (size_t)(r->head - (r->acked_end > r->tail ? r->acked_end : r->tail));
    size_t most = limit(r);
    size_t overhead = RECORD_HEAD + 1; /* the kind is part of the body */
    return kept + overhead < most ? most - kept - overhead : 0;
}

static size_t grown(size_t from, size_t need, size_t most)
{
    size_t size = from ? from : FIRST_ALLOC / 4;
    do
        size *= 4;
    while (size < need);
    return size < most ? size : most;
}

bool ring_append(struct ring *r, uint8_t kind, const void *data, size_t len, bool final)
{
    size_t record = RECORD_HEAD + 1 + len;
    size_t most = final ? r->capacity + FINAL_SLACK : limit(r);
    if ((!final && len > ring_room(r)) || record > most)
        return false;

    while (r->head - r->tail + record > most && can_evict(r))
        evict_oldest(r);
    size_t need = (size_t)(r->head - r->tail) + record;
    if (need > most)
        return false;
    if (need > r->allocated && !resize(r, grown(r->allocated, need, most))) {
        while ((size_t)(r->head - r->tail) + record > r->allocated && can_evict(r))
            evict_oldest(r);
        if ((size_t)(r->head - r->tail) + record > r->allocated)
            return false;
    }

    size_t body = 1 + len;
    uint8_t head[RECORD_HEAD + 1] = {(uint8_t)body, (uint8_t)(body >> 8), (uint8_t)(body >> 16),
                                     (uint8_t)(body >> 24), kind};
    copy_in(r, r->head, head, sizeof head);
    copy_in(r, r->head + sizeof head, data, len);
    r->head += record;
    r->next_id++;
    return true;
}

void ring_set_acked(struct ring *r, uint64_t id)
{
    if (id >= r->next_id)
        id = r->next_id - 1;
    struct ring_cursor at = {r->acked + 1, r->acked_end};
    if (id < r->acked || at.id < r->oldest_id)
        at = (struct ring_cursor){r->oldest_id, r->tail};
    while (at.id <= id) {
        at.position += RECORD_HEAD + body_len_at(r, at.position);
        at.id++;
    }
    r->acked = id;
    r->acked_end = at.position;
}

void ring_trim(struct ring *r)
{
    while (can_evict(r))
        evict_oldest(r);
    size_t kept = (size_t)(r->head - r->tail);
    if (kept == 0) {
        free(r->bytes);
        r->bytes = NULL;
        r->pool->used -= r->allocated;
        r->allocated = 0;
    } else if (kept < r->allocated / 2) {
        (void)resize(r, kept);
    }
}

bool ring_seek(const struct ring *r, uint64_t id, struct ring_cursor *ret)
{
    if (id < r->oldest_id || id > r->next_id)
        return false;
    struct ring_cursor at = {r->oldest_id, r->tail};
    if (id == r->next_id)
        at = (struct ring_cursor){r->next_id, r->head};
    while (at.id < id) {
        at.position += RECORD_HEAD + body_len_at(r, at.position);
        at.id++;
    }
    *ret = at;
    return true;
}

size_t ring_body_len(const struct ring *r, const struct ring_cursor *cursor)
{
    if (cursor->id >= r->next_id || cursor->id < r->oldest_id)
        return 0;
    return body_len_at(r, cursor->position);
}

void ring_take(const struct ring *r, struct ring_cursor *cursor, uint8_t *ret_body)
{
    size_t len = body_len_at(r, cursor->position);
    copy_out(r, cursor->position + RECORD_HEAD, ret_body, len);
    cursor->position += RECORD_HEAD + len;
    cursor->id++;
}
