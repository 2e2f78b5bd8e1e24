/*
 * The ring of one session: its events in order, with ids, until they are acknowledged and evicted.
 *
 * Event ids begin at 1 and have no gaps. Events up to `acked` may be evicted, oldest first, to make
 * room; the others may not. Bytes are kept as records (u32 length, body) in a circular buffer that
 * grows up to `capacity`, within the memory pool all rings share. The body is an EVENT payload
 * without its event id. Pure: no I/O, only memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_DEFAULT_BYTES (1024u * 1024u)
#define RING_MIN_BYTES 4096u
#define RING_MAX_BYTES (16u * 1024u * 1024u)

/* Memory shared by all rings: used never grows past max for the sake of output. */
struct ring_pool {
    size_t used;
    size_t max;
};

struct ring {
    struct ring_pool *pool;
    uint8_t *bytes;
    size_t allocated;
    size_t capacity;
    uint64_t base;       /* the position that lies at bytes[0] */
    uint64_t tail, head; /* positions of the oldest record and past the newest */
    uint64_t oldest_id, next_id;
    uint64_t acked, acked_end; /* last evictable id (< oldest_id: none) and the position after it */
};

/* Where a reader stands: the next event it wants. */
struct ring_cursor {
    uint64_t id;
    uint64_t position;
};

/* capacity_bytes is brought into RING_MIN_BYTES…RING_MAX_BYTES; 0 is the default. */
void ring_init(struct ring *r, struct ring_pool *pool, size_t capacity_bytes);
void ring_clear(struct ring *r);

/* How many bytes of output one new event could hold now. */
size_t ring_room(const struct ring *r);
/* Records kind + data as the next event. `final` events (everything but output) may go over the
 * capacity, so that the end of a session can always be told. false: no room. */
bool ring_append(struct ring *r, uint8_t kind, const void *data, size_t len, bool final);

/* Says that events up to id may be evicted. May be lower than before (a reader went back). */
void ring_set_acked(struct ring *r, uint64_t id);
/* Drops what may be evicted and gives memory back. */
void ring_trim(struct ring *r);

/* Puts the cursor on event id. false: the event is not kept (id may be next_id: the next new one).
 */
bool ring_seek(const struct ring *r, uint64_t id, struct ring_cursor *ret);
/* Length of the body at the cursor; 0 when the event does not exist yet. */
size_t ring_body_len(const struct ring *r, const struct ring_cursor *cursor);
/* Copies the body at the cursor (ring_body_len bytes) and steps to the next event. */
void ring_take(const struct ring *r, struct ring_cursor *cursor, uint8_t *ret_body);
