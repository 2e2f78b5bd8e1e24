/*
 * `space up`: server and worker on this box, supervised; prints url and key when both are ready;
 * stops both (not the sandboxes) on SIGTERM, SIGINT or SIGHUP.
 */
#include "cli/up.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/client_options.h"
#include "cli/database.h"
#include "cli/log_file.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "os/cleanup.h"

struct up_options {
    struct sp_help_option help; /* first */
    bool log_stderr;
    bool detach;
    bool fake_driver;
    char *state;
    char *api;
    char *data;
    char *data_url;
    char *database;
    char *database_file;
    char *agent;
    char *guest_dir;
    int64_t volume_max_mb;
    struct sp_pool_options pool;
};

#define OFFSET(member) offsetof(struct up_options, member)
const struct sp_option sp_up_options[] = {
    {"state", 0, SP_OPTION_STRING, OFFSET(state), "DIR",
     "state directory (default " SP_STATE_DIR_DEFAULT ")", 0},
    {"api", 0, SP_OPTION_STRING, OFFSET(api), "ADDRESS",
     "address of the API (default " SP_UP_API_DEFAULT ")", 0},
    {"data", 0, SP_OPTION_STRING, OFFSET(data), "ADDRESS",
     "address of the data plane (default " SP_UP_DATA_DEFAULT ")", 0},
    {"data-url", 0, SP_OPTION_STRING, OFFSET(data_url), "URL",
     "how clients reach the data plane, if not by its address", 0},
    {"database", 0, SP_OPTION_STRING, OFFSET(database), "URL",
     "PostgreSQL, or \"sqlite\" (default: as before, at first SQLite in DIR)", 0},
    {"database-file", 0, SP_OPTION_STRING, OFFSET(database_file), "FILE",
     "the same from a file, for a URL with a password (or set " SP_DATABASE_VARIABLE ")", 0},
    {"detach", 'd', SP_OPTION_FLAG, OFFSET(detach), NULL,
     "leave it running in the background once it is ready", 0},
    {"log-stderr", 0, SP_OPTION_FLAG, OFFSET(log_stderr), NULL,
     "log to standard error instead of DIR/log", 0},
    {"agent", 0, SP_OPTION_STRING, OFFSET(agent), "FILE", "another space-agent", 0},
    {"guest-dir", 0, SP_OPTION_STRING, OFFSET(guest_dir), "DIR",
     "another kernel and modules for microVMs", 0},
    {"volume-max-mb", 0, SP_OPTION_INT, OFFSET(volume_max_mb), "MB",
     "largest size of the data volume when it is made", 1},
    SP_OPTIONS_POOL(struct up_options, pool),
    {"fake-driver", 0, SP_OPTION_FLAG, OFFSET(fake_driver), NULL, "for tests: no real sandboxes",
     0},
    SP_OPTION_HELP,
    {0},
};
const size_t sp_up_options_bytes = sizeof(struct up_options);

#define STOP_TIMEOUT_MS 15000
#define READY_TIMEOUT_MS 120000
#define IDLE_TURN_MS 60000

static void print_ready(const struct sp_up *up)
{
    printf("url: %s\nkey: %s\n", up->conf.url, up->conf.key);
    fflush(stdout);
}

/* Says how many sandboxes go on; asked before the server stops. */
static void say_goodbye(int64_t n_running)
{
    if (n_running > 0)
        printf("stopped; %" G_GINT64_FORMAT
               " sandbox%s on running (`space up` takes them over again, "
               "`space down` ends them)\n",
               (gint64)n_running, n_running == 1 ? " goes" : "es go");
    else if (n_running == 0)
        puts("stopped; no sandboxes are running");
    else
        puts("stopped; how many sandboxes go on running is not known");
    fflush(stdout);
}

/* In the foreground from here on: until a signal comes. */
static int supervise(struct sp_up *up)
{
    while (sp_supervisor_turn(up->supervisor, IDLE_TURN_MS) != SP_SUPERVISOR_STOP)
        ;
    int64_t n_running = sp_up_count_sandboxes(up);
    sp_supervisor_stop(up->supervisor, STOP_TIMEOUT_MS);
    say_goodbye(n_running);
    return sp_output_finish(0);
}

/* Ready, in the background: lets the starter go, and logs to a file from now on. */
static void let_go(struct sp_up *up, int ready_fd)
{
    ssize_t n = write(ready_fd, "", 1);
    (void)n; /* nobody waits any more: then we go on all the same */
    close(ready_fd);
    SP_CLEANUP(sp_close_fdp) int log = sp_log_file_open(&up->state, "up", NULL);
    SP_CLEANUP(sp_close_fdp) int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDOUT_FILENO);
    dup2(log >= 0 ? log : null, STDERR_FILENO);
}

static int run_up(const struct up_options *o, int ready_fd)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *database = NULL;
    struct sp_pool_numbers pool;
    if (!sp_pool_options_read(&o->pool, &pool, &error) ||
        !sp_database_asked(o->database, o->database_file, &database, &error))
        return sp_output_error(error);
    struct sp_up_config config = {.state = o->state ? o->state : SP_STATE_DIR_DEFAULT,
                                  .api = o->api ? o->api : SP_UP_API_DEFAULT,
                                  .data = o->data ? o->data : SP_UP_DATA_DEFAULT,
                                  .data_url = o->data_url,
                                  .database = database,
                                  .agent = o->agent,
                                  .guest_dir = o->guest_dir,
                                  .volume_max_mb = o->volume_max_mb,
                                  .pool = o->pool,
                                  .log_stderr = o->log_stderr,
                                  .fake_driver = o->fake_driver};
    struct sp_up up = {0};
    sp_log_init("up", SP_LOG_INFO);
    if (!sp_up_start(&up, &config, &error))
        return sp_output_error(error);
    int code;
    if (!sp_up_wait_ready(&up, READY_TIMEOUT_MS, &error) || !sp_up_save_conf(&up, &error)) {
        sp_supervisor_stop(up.supervisor, STOP_TIMEOUT_MS);
        code = sp_output_error(error);
    } else {
        print_ready(&up);
        if (ready_fd >= 0)
            let_go(&up, ready_fd);
        code = supervise(&up);
    }
    sp_up_end(&up);
    return code;
}

/* The child is the `space up` that goes on; we wait until it is ready (or has failed and said why).
 */
static int detach(const struct up_options *o)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        g_error("pipe: %s", g_strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        g_error("fork: %s", g_strerror(errno));
    if (pid == 0) {
        close(fds[0]);
        setsid();
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(null, STDIN_FILENO);
        close(null);
        return run_up(o, fds[1]);
    }
    close(fds[1]);
    struct pollfd ready = {.fd = fds[0], .events = POLLIN};
    char byte;
    bool up =
        poll(&ready, 1, READY_TIMEOUT_MS + STOP_TIMEOUT_MS) == 1 && read(fds[0], &byte, 1) == 1;
    close(fds[0]);
    return up ? 0 : SP_EXIT_PLATFORM;
}

int sp_up_verb(const struct sp_invocation *invocation)
{
    const struct up_options *o = invocation->options;
    return o->detach ? detach(o) : run_up(o, -1);
}
