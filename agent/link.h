/*
 * The stream to the host: connection, frames, HELLO, and the bounded queue of output.
 *
 * The socket and the virtio port are watched edge-triggered; link_service reads and writes until
 * neither makes progress. Requests are taken only while the queue can hold the largest answer.
 */
#pragma once

#include "agent.h"

void link_init(struct link *l);
/* Container tier: takes a new connection from the listening socket; it replaces the old one. */
void link_accept(struct agent *a);
/* microVM tier: uses an open, non-blocking port. */
void link_use_port(struct agent *a, int fd);
/* An epoll event of the link's descriptor. */
void link_ready(struct agent *a, uint32_t events);
/* Reads requests, sends events and answers, until nothing moves or a fair share is used. */
void link_service(struct agent *a);

/* Whether a frame with this payload may be queued now; events leave room for answers. */
bool link_has_room(const struct link *l, size_t payload_len);
/* Where the payload of the next frame goes; then link_commit queues it. */
struct sp_pack link_begin(struct link *l);
void link_commit(struct link *l, uint8_t type, uint32_t tag, const struct sp_pack *payload);

void link_reply_ok(struct link *l, uint32_t tag);
void link_reply_error(struct link *l, uint32_t tag, const char *code, const char *message);
