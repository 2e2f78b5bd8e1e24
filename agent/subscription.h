/*
 * Subscriptions: who gets a session's events, how much may be sent (credit), what was acknowledged.
 * They belong to one connection; what the slowest one has acknowledged may leave the ring.
 */
#pragma once

#include "agent.h"

struct session;

/* Forgets all of them (the link was cut, or a HELLO came). What was acknowledged stands. */
void subscription_drop_all(struct agent *a);
/* The session goes away. */
void subscription_drop_session(struct agent *a, const struct session *s);

void subscription_add(struct agent *a, uint32_t tag, const struct sp_msg_subscribe *m);
void subscription_remove(struct agent *a, uint32_t tag);
void subscription_credit(struct agent *a, uint32_t tag, const struct sp_msg_credit *m);
/* Queues events as far as credits and the queue's room go, in turn. */
void subscription_pump(struct agent *a);
