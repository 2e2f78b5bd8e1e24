/* What the parts of a worker share. Made by worker.c before the threads, gone after them. */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "http/client.h"
#include "node/worker.h"

struct sp_volume;
struct sp_drivers;
struct sp_table;
struct sp_sessions;
struct sp_outbox;
struct sp_builds;
struct sp_reconciler;
struct sp_snapshots;
struct sp_pool;

struct sp_node {
    const struct sp_worker_config *config;
    char instance[40]; /* random, of this start */
    char *data_url;
    char *cgroup_root;  /* name of this installation's control group */
    char *sandbox_root; /* <state>/run/sandboxes */
    char node_key_hash[65];
    struct sp_http_client *server; /* with the node key */
    struct sp_volume *volume;
    struct sp_drivers *drivers;
    struct sp_table *table;
    struct sp_sessions *sessions;
    struct sp_snapshots *snapshots;
    struct sp_outbox *sandbox_reports, *session_reports, *snapshot_reports;
    struct sp_builds *builds;
    struct sp_reconciler *reconciler;
    struct sp_pool *pool;
    gint stopping; /* atomic */
};

static inline bool sp_node_stopping(const struct sp_node *node)
{
    return g_atomic_int_get(&node->stopping) != 0;
}
