/* An agent for the tests of the link that behaves, or does not. */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "node/link.h"

/* What one connection does wrong. */
struct misdeed {
    const char *garbage; /* sent before anything else; garbage_len bytes */
    size_t garbage_len;
    bool wrong_nonce;   /* a HELLO_OK with another nonce first */
    bool silent_hellos; /* the first HELLO is not answered */
    bool no_answers;    /* nothing but HELLO is answered */
    uint64_t cut_after; /* closes after so many bytes have been sent; 0: never */
    const void *raw;    /* sent after SUBSCRIBED instead of events; raw_len bytes */
    size_t raw_len;
    bool over_credit;      /* pays no heed to credit */
    bool out_of_order;     /* leaves the second event out */
    bool events_after_end; /* sends the last event twice */
    bool wrong_reply;      /* answers PING with STARTED */
    bool new_instance;     /* another agent instance */
    bool gap;              /* SUBSCRIBED says that events are missing: only the last is left */
};

struct peer {
    /* Set before the link starts. */
    const struct misdeed *misdeeds; /* one for each connection; the last goes for all that follow */
    unsigned n_misdeeds;
    unsigned n_events;     /* started, outputs, exited */
    size_t event_bytes;    /* of each output */
    uint64_t stdin_window; /* bytes beyond what was accepted */
    /* Results; read them after peer_clear(), or with the lock. */
    GMutex lock;
    GCond changed;
    unsigned connections, starts, hellos;
    uint64_t zero_bytes; /* of filler before a HELLO */
    uint64_t sent_events_bytes, acked;
    GByteArray *input;
    bool input_closed;
    int fd;
    GThread *thread;
    bool refuse; /* no new connections */
};

void peer_init(struct peer *peer);
/* For struct sp_link_spec. */
int peer_connect(void *peer, GError **error);
/* Ends the thread; after the link has been stopped. */
void peer_clear(struct peer *peer);
/* Payload of the n-th output event (id 2…): bytes with magic numbers in them. */
void peer_fill(uint8_t *bytes, size_t len, uint64_t event_id);
