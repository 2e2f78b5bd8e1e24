/* The entry of `space worker`: one per node. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* All strings are borrowed and outlive the call. */
struct sp_worker_config {
    const char *state_dir; /* absolute; <state>/run/sandboxes and <state>/data are made below it */
    const char *node_name; /* "local" */
    const char *data_address;  /* of the data plane: "127.0.0.1:7071"; port 0: any */
    const char *data_url;      /* how clients reach it; NULL: "http://" and the bound address */
    const char *server_url;    /* "http://127.0.0.1:7070" */
    const char *node_key;      /* "nk_…" */
    const char *agent_path;    /* the static space-agent */
    const char *guest_dir;     /* kernel and modules of the microVM */
    const char *self_exe;      /* this program: exec'd as the launcher */
    const char *cgroup_root;   /* NULL: "space-" and eight digits made from the state directory */
    uint64_t volume_max_bytes; /* sp_volume_open() */
    /* Warm pools (docs/pools.md): members of one key at least, of all keys at most (0: no pools),
     * and their memory (0: an eighth of what is free). */
    unsigned pool_min, pool_max;
    int64_t pool_memory_mb;
    bool fake_driver; /* tests: the tier "container" is src/driver/fake, and no other */
};

/* Runs until SIGTERM or SIGINT (which it blocks in every thread); then stops within 2 s and leaves
 * the sandboxes running. Returns the exit status. */
int sp_worker_main(const struct sp_worker_config *config);
