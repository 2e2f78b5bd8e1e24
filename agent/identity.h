/*
 * IDENTITY and QUIESCE: who this sandbox is (clock, entropy, names, default environment, limits),
 * and the lock that keeps commands from running before that is known.
 */
#pragma once

#include "agent.h"

void identity_set(struct agent *a, uint32_t tag, const struct sp_msg_identity *m);
void identity_quiesce(struct agent *a, uint32_t tag);
/* The text of /etc/hosts with the line of our name replaced or added (pure). Returns its length; 0
 * when it does not fit. */
size_t identity_hosts(const char *old, size_t old_len, const char *hostname, char *ret,
                      size_t size);
