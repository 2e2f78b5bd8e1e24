/* A single-box installation as it is brought up: for `space up` and `space down`. */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/client_conf.h"
#include "cli/pool_options.h"
#include "cli/state_dir.h"
#include "cli/supervisor.h"

#define SP_UP_API_DEFAULT "127.0.0.1:7070"
#define SP_UP_DATA_DEFAULT "127.0.0.1:7071"

/* All borrowed. */
struct sp_up_config {
    const char *state;
    const char *api, *data;        /* addresses to listen on, with ports other than 0 */
    const char *data_url;          /* NULL: from `data` */
    const char *database;          /* as sp_database_asked() gave it; NULL: the one that was kept */
    const char *agent, *guest_dir; /* NULL: those that came with us */
    int64_t volume_max_mb;         /* 0: the default */
    struct sp_pool_options pool;
    bool log_stderr;
    bool fake_driver;
};

struct sp_up {
    struct sp_state_dir state;
    struct sp_client_conf conf;
    char *database;       /* URL; NULL: SQLite in the state directory */
    char *data_local_url; /* the data plane as this machine reaches it */
    int64_t started_ms;   /* real time, before the first daemon was started */
    struct sp_supervisor *supervisor;
};

/* Takes the state directory, checks that the addresses are free and the database answers, and
 * starts the daemons. */
bool sp_up_start(struct sp_up *up, const struct sp_up_config *config, GError **error);
/* Waits until server and worker say that they are ready, the worker has registered, and it has
 * tried its tiers out (for 30 s at most; later ones become known later). Fails when a daemon keeps
 * dying, a signal comes or the time is up. */
bool sp_up_wait_ready(struct sp_up *up, int64_t timeout_ms, GError **error);
/* Writes client.conf, and which database it is. */
bool sp_up_save_conf(const struct sp_up *up, GError **error);
/* Name of the installation's control group: "space-" and eight digits made from the path. Free with
 * g_free(). */
char *sp_up_cgroup_root(const char *state_path);
/* Number of sandboxes that are running or paused; -1 when the server does not answer in 3 s. */
int64_t sp_up_count_sandboxes(struct sp_up *up);
/* Frees; the daemons have been stopped. */
void sp_up_end(struct sp_up *up);
