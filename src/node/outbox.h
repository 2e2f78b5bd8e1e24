/*
 * Reports that the server has to take: the newest one of each subject, sent in batches by a thread
 * of its own, again and again until the server has taken it.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>

struct sp_outbox;

struct sp_outbox_ops {
    /* Sends a list of reports. */
    bool (*send)(void *user, json_t *reports, GError **error);
    /* A report was taken, or refused for good (taken false; the error was logged). May be NULL.
     * Called in the outbox's thread, without locks. */
    void (*taken)(void *user, const char *id, const json_t *report, bool taken);
};

/* name: for thread and log. */
struct sp_outbox *sp_outbox_new(const char *name, const struct sp_outbox_ops *ops, void *user);
/* Ends the thread; what has not been sent is dropped (a later worker reports it from what it
 * finds). */
void sp_outbox_free(struct sp_outbox *outbox);
/* Queues a report, in the place of an older one of the same id. The reference is taken over. */
void sp_outbox_put(struct sp_outbox *outbox, const char *id, json_t *report);
