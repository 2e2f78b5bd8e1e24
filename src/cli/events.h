/*
 * What a client does with the events of a session: output goes out byte for byte, the last event
 * becomes the exit code.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/interrupt.h"
#include "wire/sse.h"

/* Largest event that is taken; the data plane sends at most 64 KiB of output, in base64. */
#define SP_EVENT_MAX_BYTES (1024 * 1024)

/* Exit code of a process_exited or error event. 124 for a time-out, 128 + n for signal n, 127 and
 * 126 for a command that is not there or cannot be run, 125 for what is the platform's fault. */
int sp_event_exit_code(const json_t *event);

struct sp_event_sink {
    int out_fd, err_fd;
    bool json;                      /* events as JSON lines to out_fd instead of their data */
    struct sp_interrupt *interrupt; /* a blocked write ends when it is cancelled */
    void (*on_started)(void *user); /* NULL: not told */
    void *user;

    /* State, zero at first. */
    bool started;
    bool ended;        /* a last event came: exit_code counts */
    bool suspended;    /* ... and it was that the sandbox was suspended */
    bool lost;         /* output is missing (resync_required, dropped) */
    bool write_failed; /* nobody reads the output any more: exit_code says how to leave */
    int exit_code;
    uint64_t last_id; /* of the last event that was wholly handled; 0: none */
};

/* Handles one event; false: nothing more is wanted (the end, or output cannot be written). Fits
 * sp_sse_parser_feed(). */
bool sp_event_sink_take(void *sink, const struct sp_sse_event *event);

/* Writes all bytes. Never blocks for ever: false when the interrupt was cancelled, or with errno
 * set when the descriptor takes no more. interrupt may be NULL. */
bool sp_write_fully(int fd, const void *bytes, size_t len, struct sp_interrupt *interrupt);
