#include "cli/state_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "cli/client_conf.h"
#include "os/cleanup.h"
#include "os/file_lock.h"

static bool fail(GError **error, const char *what, const char *path)
{
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "cannot %s %s", what, path);
    return false;
}

char *sp_state_dir_file(const struct sp_state_dir *state, const char *name)
{
    return g_build_filename(state->path, name, NULL);
}

/* A directory that is there must be ours, and nobody else may put files into it. */
static bool check_directory(const char *path, GError **error)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return fail(error, "look at", path);
    if (S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & (S_IWGRP | S_IWOTH)) == 0)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                "%s must be a directory of our own that nobody else can write to", path);
    return false;
}

static bool make_directory(const char *path, mode_t mode, GError **error)
{
    if (mkdir(path, mode) == 0)
        return chmod(path, mode) == 0 ||
               fail(error, "set the mode of", path); /* whatever the umask */
    if (errno != EEXIST)
        return fail(error, "make", path);
    return true;
}

static bool make_state_directory(const char *path, GError **error)
{
    g_autofree char *parent = g_path_get_dirname(path);
    if (g_mkdir_with_parents(parent, 0755) != 0)
        return fail(error, "make", parent);
    return make_directory(path, 0711, error) && check_directory(path, error);
}

static bool take_lock(struct sp_state_dir *state, GError **error)
{
    g_autofree char *path = sp_state_dir_file(state, "up.lock");
    SP_CLEANUP(sp_close_fdp) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fail(error, "open", path);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_SETLK, &lock) != 0) {
        if (errno != EAGAIN && errno != EACCES)
            return fail(error, "lock", path);
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "another `space up` (pid %d) runs on %s", (int)sp_state_dir_holder(state->path),
                    state->path);
        return false;
    }
    state->lock_fd = sp_steal_fd(&fd);
    return true;
}

pid_t sp_state_dir_holder(const char *path)
{
    g_autofree char *file = g_build_filename(path, "up.lock", NULL);
    SP_CLEANUP(sp_close_fdp) int fd = open(file, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fd < 0 || fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK)
        return 0;
    return lock.l_pid;
}

/* The server's own directory belongs to its uid, with all that is in it already (its files are made
 * by itself; only the directory can be of another owner, when `up` ran as somebody else before). */
static bool make_server_directory(struct sp_state_dir *state, GError **error)
{
    g_autofree char *path = sp_state_dir_file(state, "server");
    if (!make_directory(path, 0700, error))
        return false;
    if (state->server_uid == (uid_t)-1 || lchown(path, SP_SERVER_UID, SP_SERVER_UID) == 0)
        return true;
    return fail(error, "change the owner of", path);
}

/* One secret in a file of its own, made at first use. */
static bool load_node_key(struct sp_state_dir *state, GError **error)
{
    g_autofree char *path = sp_state_dir_file(state, "node.key");
    g_autofree char *text = NULL;
    g_autoptr(GError) cause = NULL;
    if (g_file_get_contents(path, &text, NULL, &cause)) {
        g_strstrip(text);
        if (g_str_has_prefix(text, "nk_") && strlen(text) < sizeof state->node_key) {
            g_strlcpy(state->node_key, text, sizeof state->node_key);
            return true;
        }
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s holds no node key", path);
        return false;
    }
    if (!g_error_matches(cause, G_FILE_ERROR, G_FILE_ERROR_NOENT)) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s", cause->message);
        return false;
    }
    sp_secret_new("nk", state->node_key);
    g_autofree char *line = g_strconcat(state->node_key, "\n", NULL);
    g_clear_error(&cause);
    if (g_file_set_contents_full(path, line, -1,
                                 G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0600,
                                 &cause))
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s", cause->message);
    return false;
}

/* The API key is kept in client.conf alone; `up` writes that file when it is ready. */
static bool load_api_key(struct sp_state_dir *state, GError **error)
{
    g_autofree char *path = sp_state_dir_file(state, "client.conf");
    struct sp_client_conf conf = {0};
    g_autoptr(GError) cause = NULL;
    if (sp_client_conf_load(path, &conf, &cause)) {
        bool ok = strlen(conf.key) < sizeof state->api_key;
        g_strlcpy(state->api_key, conf.key, sizeof state->api_key);
        sp_client_conf_clear(&conf);
        if (!ok)
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s holds no API key", path);
        return ok;
    }
    if (!g_error_matches(cause, SP_ERROR, SP_ERROR_NOT_FOUND)) {
        g_propagate_prefixed_error(error, g_steal_pointer(&cause), "%s: ", path);
        return false;
    }
    sp_secret_new("sk", state->api_key);
    return true;
}

bool sp_state_dir_open(const char *path, struct sp_state_dir *ret, GError **error)
{
    struct sp_state_dir state = {.path = g_canonicalize_filename(path, NULL), .lock_fd = -1};
    state.server_uid = geteuid() == 0 ? (uid_t)SP_SERVER_UID : (uid_t)-1;
    g_autofree char *log = sp_state_dir_file(&state, "log");
    if (make_state_directory(state.path, error) && take_lock(&state, error) &&
        make_directory(log, 0700, error) && make_server_directory(&state, error) &&
        load_node_key(&state, error) && load_api_key(&state, error)) {
        *ret = state;
        return true;
    }
    sp_state_dir_close(&state);
    return false;
}

void sp_state_dir_close(struct sp_state_dir *state)
{
    if (state->lock_fd >= 0)
        close(state->lock_fd);
    state->lock_fd = -1;
    g_clear_pointer(&state->path, g_free);
    explicit_bzero(state->node_key, sizeof state->node_key);
    explicit_bzero(state->api_key, sizeof state->api_key);
}

int sp_state_dir_lock_daemon(const struct sp_state_dir *state, const char *daemon, int timeout_ms,
                             GError **error)
{
    g_autofree char *name = g_strconcat(daemon, ".lock", NULL);
    g_autofree char *path = sp_state_dir_file(state, name);
    GError *cause = NULL;
    int fd = sp_file_lock(path, timeout_ms, &cause);
    if (fd >= 0)
        return fd;
    if (g_error_matches(cause, SP_ERROR, SP_ERROR_UNAVAILABLE)) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "an earlier %s of %s has not ended yet", daemon, state->path);
        g_error_free(cause);
    } else {
        g_propagate_error(error, cause);
    }
    return -1;
}
