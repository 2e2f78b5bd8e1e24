/*
 * `space down`: ends everything of an installation: deletes its sandboxes, stops `space up`,
 * unmounts what it has mounted. Data stays: templates, the database, the keys.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <gio/gio.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/client.h"
#include "cli/client_options.h"
#include "cli/output.h"
#include "cli/sandbox_options.h"
#include "cli/up.h"
#include "cli/verbs.h"
#include "disk/image.h"
#include "disk/volume.h"
#include "os/cgroup.h"
#include "os/cleanup.h"
#include "os/mount.h"
#include "os/pidfd.h"

#define READY_TIMEOUT_MS 120000
#define STOP_TIMEOUT_MS 15000
#define UP_ENDS_MS 40000
#define DELETE_MS 60000
#define POOL_MS 30000
#define POLL_MS 20

struct down_options {
    struct sp_help_option help; /* first */
    bool fake_driver;
    char *state;
    char *agent;
    char *guest_dir;
};

#define OFFSET(member) offsetof(struct down_options, member)
const struct sp_option sp_down_options[] = {
    {"state", 0, SP_OPTION_STRING, OFFSET(state), "DIR",
     "state directory (default " SP_STATE_DIR_DEFAULT ")", 0},
    {"agent", 0, SP_OPTION_STRING, OFFSET(agent), "FILE", "another space-agent", 0},
    {"guest-dir", 0, SP_OPTION_STRING, OFFSET(guest_dir), "DIR",
     "another kernel and modules for microVMs", 0},
    {"fake-driver", 0, SP_OPTION_FLAG, OFFSET(fake_driver), NULL, "for tests: no real sandboxes",
     0},
    SP_OPTION_HELP,
    {0},
};
const size_t sp_down_options_bytes = sizeof(struct down_options);

/* Number of directories in run/sandboxes: what a worker has of sandboxes, whether or not a server
 * knows them; or in run/pool: sandboxes without an owner. */
static unsigned count_run_directories(const char *state, const char *folder)
{
    g_autofree char *path = g_build_filename(state, "run", folder, NULL);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    unsigned n = 0;
    while (dir && g_dir_read_name(dir))
        n++;
    return n;
}

/* Deletes all at once, then waits for each. *ret_n gets how many there were. */
static bool delete_all(struct sp_client *api, unsigned *ret_n, GError **error)
{
    g_autoptr(json_t) list = sp_client_list(api, "/v1/sandboxes", error);
    if (!list)
        return false;
    g_autoptr(json_t) operations = json_array();
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(list, "items"), i, item)
    {
        g_autoptr(json_t) wrapped = json_pack("{s:O}", "sandbox", item);
        g_autofree char *path = sp_sandbox_path(wrapped);
        g_autoptr(GError) cause = NULL;
        struct sp_client_request request = {.method = "DELETE", .path = path};
        g_autoptr(json_t) answer = path ? sp_client_call(api, &request, NULL, &cause) : NULL;
        if (answer) {
            json_array_append(operations, json_object_get(answer, "operation"));
        } else if (!g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND)) {
            g_propagate_error(error, g_steal_pointer(&cause));
            return false;
        }
    }
    json_array_foreach(operations, i, item)
    {
        g_autoptr(json_t) ended =
            sp_client_wait_operation(api, item, DELETE_MS, (struct sp_client_cancel){0}, error);
        if (!ended)
            return false;
    }
    *ret_n += (unsigned)json_array_size(operations);
    return true;
}

static bool end_running_up(const char *state, pid_t pid, unsigned *ret_n, GError **error)
{
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(state, error);
    SP_CLEANUP(sp_close_fdp) int pidfd = api ? sp_pidfd_open(pid, error) : -1;
    if (pidfd < 0 || !delete_all(api, ret_n, error))
        return false;
    /* The lock's holder was asked for before the pidfd was opened: it is the same process if it
     * still is the holder. */
    if (sp_state_dir_holder(state) == pid && !sp_pidfd_signal(pidfd, SIGTERM, error))
        return false;
    if (sp_pidfd_wait(pidfd, UP_ENDS_MS))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "`space up` (pid %d) does not end",
                (int)pid);
    return false;
}

/* A loopback address that is free now. */
static char *free_address(void)
{
    g_autoptr(GInetAddress) loopback = g_inet_address_new_loopback(G_SOCKET_FAMILY_IPV4);
    g_autoptr(GSocketAddress) any = g_inet_socket_address_new(loopback, 0);
    g_autoptr(GSocket) socket =
        g_socket_new(G_SOCKET_FAMILY_IPV4, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, NULL);
    if (!socket || !g_socket_bind(socket, any, FALSE, NULL))
        return g_strdup(SP_UP_API_DEFAULT);
    g_autoptr(GSocketAddress) bound = g_socket_get_local_address(socket, NULL);
    return g_strdup_printf("127.0.0.1:%u",
                           g_inet_socket_address_get_port(G_INET_SOCKET_ADDRESS(bound)));
}

/* A worker removes what it finds in run/pool in the background; the kernel has no event for that.
 */
static void await_empty_pool(const char *state)
{
    for (int waited = 0; waited < POOL_MS && count_run_directories(state, "pool");
         waited += POLL_MS)
        g_usleep(POLL_MS * 1000);
}

/* No daemons run, but sandboxes may: they are deleted the proper way, by daemons for a moment. */
static bool end_by_own_daemons(const struct down_options *o, const char *state, unsigned *ret_n,
                               GError **error)
{
    g_autofree char *api_address = free_address();
    g_autofree char *data_address = free_address();
    struct sp_up_config config = {.state = state,
                                  .api = api_address,
                                  .data = data_address,
                                  .agent = o->agent,
                                  .guest_dir = o->guest_dir,
                                  .pool = {.max = (char *)"0"},
                                  .fake_driver = o->fake_driver};
    struct sp_up up = {0};
    if (!sp_up_start(&up, &config, error))
        return false;
    bool ok = sp_up_wait_ready(&up, READY_TIMEOUT_MS, error);
    if (ok) {
        struct sp_client *api = sp_client_open_with(&up.conf);
        ok = delete_all(api, ret_n, error);
        sp_client_free(api);
        await_empty_pool(state);
    }
    sp_supervisor_stop(up.supervisor, STOP_TIMEOUT_MS);
    sp_up_end(&up);
    return ok;
}

/* The empty directories of what ran; what is not empty stays, and is said by the checks before. */
static void remove_run_directories(const char *state)
{
    static const char *const names[] = {"run/sandboxes",     "run/pool", "run/images",
                                        "run/container-dev", "run",      NULL};
    /* A killed worker leaves it mounted on kernels before 6.15 (driver/container/dev.c). */
    g_autofree char *dev = g_build_filename(state, "run/container-dev", NULL);
    if (sp_mount_is_point(dev))
        sp_mount_detach(dev, NULL);
    for (const char *const *name = names; *name; name++) {
        g_autofree char *path = g_build_filename(state, *name, NULL);
        rmdir(path);
    }
}

static bool remove_cgroups(const char *state, GError **error)
{
    g_autofree char *root = sp_up_cgroup_root(state);
    SP_CLEANUP(sp_cgroups_free_p) struct sp_cgroups *cgroups = sp_cgroups_open(NULL, root, NULL);
    return !cgroups || sp_cgroups_remove_root(cgroups, error);
}

/* What the installation has mounted and made outside of its directory: as much of it as can be. The
 * error is the first one. */
static bool take_down_host(const char *state, GError **error)
{
    g_autoptr(GError) images_error = NULL;
    g_autoptr(GError) volume_error = NULL;
    g_autoptr(GError) cgroups_error = NULL;
    struct sp_images *images = sp_images_new(state);
    sp_images_unmount(images, NULL, &images_error);
    sp_images_free(images);
    sp_volume_unmount(state, &volume_error);
    remove_run_directories(state);
    remove_cgroups(state, &cgroups_error);
    GError **errors[] = {&images_error, &volume_error, &cgroups_error};
    for (size_t i = 0; i < G_N_ELEMENTS(errors); i++) {
        if (*errors[i]) {
            g_propagate_error(error, g_steal_pointer(errors[i]));
            return false;
        }
    }
    return true;
}

static bool bring_down(const struct down_options *o, const char *state, unsigned *ret_n,
                       GError **error)
{
    pid_t pid = sp_state_dir_holder(state);
    if (pid && !end_running_up(state, pid, ret_n, error))
        return false;
    /* A worker that ends in a hurry leaves members of pools to the next one. */
    bool left_over = count_run_directories(state, "pool") > 0 ||
                     (!pid && count_run_directories(state, "sandboxes") > 0);
    if (left_over && !end_by_own_daemons(o, state, ret_n, error))
        return false;
    unsigned left = count_run_directories(state, "sandboxes");
    if (left) {
        g_set_error(
            error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
            "%u sandboxes below %s/run/sandboxes are not known to this installation's server; "
            "they were left alone",
            left, state);
        return false;
    }
    return take_down_host(state, error);
}

int sp_down_verb(const struct sp_invocation *invocation)
{
    const struct down_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    sp_log_init("down", SP_LOG_WARNING);
    g_autofree char *state =
        g_canonicalize_filename(o->state ? o->state : SP_STATE_DIR_DEFAULT, NULL);
    if (!g_file_test(state, G_FILE_TEST_IS_DIR)) {
        printf("nothing to end: %s does not exist\n", state);
        return sp_output_finish(0);
    }
    unsigned n = 0;
    if (!bring_down(o, state, &n, &error))
        return sp_output_error(error);
    printf("ended; %u sandbox%s deleted\n", n, n == 1 ? "" : "es");
    return sp_output_finish(0);
}
