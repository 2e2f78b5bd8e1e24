/* The server alone, for the end-to-end tests with a fake worker: database, address, "sk_…", "nk_…".
 * The bound address goes to stdout. */
#include <stdio.h>

#include "api/server_main.h"
#include "base/ids.h"
#include "base/log.h"

int main(int argc, char **argv)
{
    if (argc != 5) {
        fputs("usage: api-server DATABASE ADDRESS API_KEY NODE_KEY\n", stderr);
        return 2;
    }
    sp_log_init("server", SP_LOG_INFO);
    char hash[SP_HASH_HEX];
    sp_secret_hash(argv[3], hash);
    struct sp_server_config config = {.database = argv[1],
                                      .address = argv[2],
                                      .api_key_hash = hash,
                                      .node_key = argv[4],
                                      .ready_fd = 1};
    return sp_server_main(&config);
}
