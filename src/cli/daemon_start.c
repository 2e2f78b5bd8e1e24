#include "cli/daemon_start.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/close_range.h>

#include "base/error.h"
#include "base/log.h"
#include "os/cleanup.h"

#define SECRETS_MAX_BYTES 65536
#define SECRETS_TIMEOUT_MS 5000
#define PRIVATE_PLACE "/tmp/space-server"

json_t *sp_daemon_read_secrets(int fd, GError **error)
{
    g_autofree char *text = g_malloc(SECRETS_MAX_BYTES);
    size_t len = 0;
    ssize_t n = 1;
    while (n > 0 && len < SECRETS_MAX_BYTES) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (poll(&ready, 1, SECRETS_TIMEOUT_MS) == 0) {
            errno = ETIMEDOUT;
            n = -1;
        } else {
            n = read(fd, text + len, SECRETS_MAX_BYTES - len);
        }
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            len += (size_t)n;
    }
    json_t *secrets = NULL;
    if (n < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "cannot read the secrets from fd %d",
                           fd);
    else
        secrets = sp_json_parse(text, len, error);
    explicit_bzero(text, SECRETS_MAX_BYTES);
    close(fd);
    return secrets;
}

void sp_daemon_keep_descriptors(void)
{
    if (close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC) != 0)
        g_error("close_range: %s", g_strerror(errno));
}

static gpointer watch_thread(gpointer data)
{
    int fd = GPOINTER_TO_INT(data);
    for (;;) {
        struct pollfd end = {.fd = fd, .events = POLLIN};
        if (poll(&end, 1, -1) < 0 && errno == EINTR)
            continue;
        char byte;
        ssize_t n = read(fd, &byte, 1);
        if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN)))
            continue;
        sp_log(SP_LOG_WARNING, "the supervisor is gone: stopping", NULL);
        kill(getpid(), SIGTERM);
        return NULL;
    }
}

void sp_daemon_watch_parent(int fd)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    g_thread_unref(g_thread_new("supervisor", watch_thread, GINT_TO_POINTER(fd)));
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

bool sp_daemon_drop_privileges(uid_t uid, GError **error)
{
    gid_t gid = (gid_t)uid;
    if (setgroups(0, NULL) != 0 || setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0 ||
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "cannot become uid %u", (unsigned)uid);
        return false;
    }
    /* Leaving uid 0 has emptied the effective and permitted sets (capabilities(7)); make sure. */
    cap_t caps = cap_init();
    int failed = !caps || cap_set_proc(caps) != 0;
    cap_free(caps);
    if (failed || setresuid(0, 0, 0) == 0) {
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL, "privileges were not dropped");
        return false;
    }
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    return true;
}

/* Whether the path can be walked with the uid's rights (setfsuid(2) takes the file capabilities
 * away). */
static bool can_walk(const char *dir, uid_t uid)
{
    uid_t own_gid = getegid();
    setfsgid((gid_t)uid);
    setfsuid(uid);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    setfsuid(geteuid());
    setfsgid(own_gid);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* A mount namespace of our own with dir at PRIVATE_PLACE. */
static bool mount_privately(const char *dir)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0)
        return false;
    /* Opened in the new namespace, for only its mounts can be bound in it, and before the tmpfs,
     * which may hide the path. */
    SP_CLEANUP(sp_close_fdp) int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    g_autofree char *source = g_strdup_printf("/proc/self/fd/%d", fd);
    return fd >= 0 &&
           mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m") == 0 &&
           mkdir(PRIVATE_PLACE, 0755) == 0 && chmod(PRIVATE_PLACE, 0755) == 0 &&
           mount(source, PRIVATE_PLACE, NULL, MS_BIND, NULL) == 0;
}

char *sp_daemon_reachable(const char *dir, uid_t uid, GError **error)
{
    if (can_walk(dir, uid))
        return g_strdup(dir);
    if (mount_privately(dir) && can_walk(PRIVATE_PLACE, uid))
        return g_strdup(PRIVATE_PLACE);
    sp_error_set_errno(error, SP_ERROR_FAILED_PRECONDITION, errno,
                       "uid %u cannot reach %s: a directory above it is closed to others",
                       (unsigned)uid, dir);
    return NULL;
}
