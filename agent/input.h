/*
 * Standard input of a session: offsets, a bounded buffer, the child's pipe.
 */
#pragma once

#include "wire/agent_msg.h"

#include <stdbool.h>
#include <stdint.h>

#define INPUT_WINDOW_BYTES 65536u

struct agent;
struct session;

struct input {
    int fd;    /* the child's pipe or terminal; -1: closed */
    bool none; /* START said no input */
    bool is_terminal;
    bool close_asked;  /* STDIN_CLOSE was accepted; the pipe closes when the buffer is empty */
    bool child_closed; /* the child has closed its end, or has ended */
    bool watched;
    bool shut; /* the last STDIN_ACK left no window */
    uint64_t accepted;
    uint8_t *buffer; /* INPUT_WINDOW_BYTES, while it holds something */
    size_t from, len;
};

/* The handlers queue their answer. */
void input_data(struct agent *a, uint32_t tag, struct session *s, const struct sp_msg_stdin *m);
void input_close(struct agent *a, uint32_t tag, struct session *s, uint64_t offset);
void input_query(struct agent *a, uint32_t tag, struct session *s);

/* The pipe can be written, or its reader is gone. */
void input_ready(struct agent *a, struct session *s);
/* Closes the pipe and drops what was not written. */
void input_end(struct agent *a, struct session *s);
