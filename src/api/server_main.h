/* The daemon `space server`: store, controller and the API's listener. */
#pragma once

/* All strings are borrowed and outlive the call. */
struct sp_server_config {
    const char *database; /* path of the SQLite file, whose folder is made (0700) when absent, or
                             a URL (store/where.h) */
    const char *address;  /* "127.0.0.1:7070"; port 0: any */
    const char *api_key_hash; /* sp_secret_hash() of the installation's "sk_…"; NULL: as it was */
    const char *node_key;     /* "nk_…": what workers and server show each other */
    int ready_fd;             /* gets "<address>\n" once requests are answered; 0: none */
};

/* Runs until SIGTERM or SIGINT (which it blocks in every thread: call it before making any); then
 * ends within 2 s, long waits included. Returns the exit status: 0, or 1 when it could not start
 * (logged). */
int sp_server_main(const struct sp_server_config *config);
