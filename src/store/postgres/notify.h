/*
 * LISTEN and NOTIFY: tells the other servers on this database which topics have changed, and hears
 * of theirs. Only a hint: what is lost in a broken connection is made up for by whoever waits, who
 * looks again after a second (changes.c).
 *
 * One thread with a connection of its own, so that nobody who publishes waits for the network.
 */
#pragma once

#include "store/db.h"

struct sp_pg_notifier;

/* heard is called from the notifier's thread, see sp_db_listen(). */
struct sp_pg_notifier *sp_pg_notifier_new(const char *url, sp_db_heard heard, void *user);
/* Tells what is still queued, if the connection stands, and ends the thread. */
void sp_pg_notifier_free(struct sp_pg_notifier *notifier);
/* Queues a topic; never blocks. Thread-safe. */
void sp_pg_notifier_send(struct sp_pg_notifier *notifier, const char *topic);
