#include "node/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "disk/tree.h"
#include "os/cleanup.h"

#define TEXT_MAX 4096u
#define GROUP "suspended"

static bool fail(GError **error, const char *what, const char *run_dir, const char *name)
{
    enum sp_error_code code =
        errno == ENOSPC || errno == EDQUOT ? SP_ERROR_UNAVAILABLE : SP_ERROR_INTERNAL;
    sp_error_set_errno(error, code, errno, "%s %s/%s", what, run_dir, name);
    return false;
}

static int open_dir(const char *run_dir)
{
    return open(run_dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* The directory itself may be so new that its own name is not on the disk yet. */
static bool sync_names(int dir_fd)
{
    SP_CLEANUP(sp_close_fdp) int parent = openat(dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return parent >= 0 && fsync(dir_fd) == 0 && fsync(parent) == 0;
}

static bool put_at(int dir_fd, const char *name, const char *text, bool durable)
{
    g_autofree char *temporary = g_strconcat(name, ".new", NULL);
    int fd = openat(dir_fd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return false;
    ssize_t len = (ssize_t)strlen(text);
    bool fine = write(fd, text, (size_t)len) == len && (!durable || fsync(fd) == 0);
    int saved = errno;
    close(fd);
    errno = saved;
    fine = fine && renameat(dir_fd, temporary, dir_fd, name) == 0;
    if (fine && durable && !sync_names(dir_fd)) { /* in force, but perhaps not for long */
        saved = errno;
        unlinkat(dir_fd, name, 0);
        errno = saved;
        return false;
    }
    if (!fine) {
        saved = errno;
        unlinkat(dir_fd, temporary, 0);
        errno = saved;
    }
    return fine;
}

bool sp_run_dir_put(const char *run_dir, const char *name, const char *text, bool durable,
                    GError **error)
{
    SP_CLEANUP(sp_close_fdp) int dir_fd = open_dir(run_dir);
    if (dir_fd >= 0 && put_at(dir_fd, name, text, durable))
        return true;
    return fail(error, "writing", run_dir, name);
}

bool sp_run_dir_drop(const char *run_dir, const char *name, bool durable, GError **error)
{
    SP_CLEANUP(sp_close_fdp) int dir_fd = open_dir(run_dir);
    if (dir_fd < 0 && errno == ENOENT)
        return true;
    if (dir_fd >= 0 && (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT) &&
        (!durable || fsync(dir_fd) == 0))
        return true;
    return fail(error, "removing", run_dir, name);
}

bool sp_run_dir_has(const char *run_dir, const char *name)
{
    g_autofree char *path = g_build_filename(run_dir, name, NULL);
    return access(path, F_OK) == 0;
}

bool sp_run_dir_can_tell(const char *run_dir, GError **error)
{
    static const char *const marks[] = {SP_RUN_READY, SP_RUN_HELD, SP_RUN_SUSPENDED};
    for (size_t i = 0; i < G_N_ELEMENTS(marks); i++) {
        g_autofree char *path = g_build_filename(run_dir, marks[i], NULL);
        if (access(path, F_OK) < 0 && errno != ENOENT)
            return fail(error, "looking for", run_dir, marks[i]);
    }
    return true;
}

char *sp_run_dir_get(const char *run_dir, const char *name)
{
    g_autofree char *path = g_build_filename(run_dir, name, NULL);
    SP_CLEANUP(sp_close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    char text[TEXT_MAX];
    ssize_t len = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (len < 0)
        return NULL;
    return g_strndup(text, (gsize)len);
}

bool sp_run_dir_put_suspended(const char *run_dir, const struct sp_run_suspended *suspended,
                              GError **error)
{
    g_autofree char *text = g_strdup_printf("[" GROUP "]\nslot=%d\nmemory=%d\n", suspended->slot,
                                            suspended->memory ? 1 : 0);
    return sp_run_dir_put(run_dir, SP_RUN_SUSPENDED, text, true, error);
}

bool sp_run_dir_get_suspended(const char *run_dir, struct sp_run_suspended *ret)
{
    if (!sp_run_dir_has(run_dir, SP_RUN_SUSPENDED))
        return false;
    *ret = (struct sp_run_suspended){.slot = -1, .memory = true};
    g_autofree char *text = sp_run_dir_get(run_dir, SP_RUN_SUSPENDED);
    g_autoptr(GKeyFile) file = g_key_file_new();
    if (!text || !g_key_file_load_from_data(file, text, strlen(text), G_KEY_FILE_NONE, NULL))
        return true;
    GError *missing = NULL;
    gint slot = g_key_file_get_integer(file, GROUP, "slot", &missing);
    if (!missing && slot >= 0 && slot < (int)SP_SLOTS)
        ret->slot = slot;
    g_clear_error(&missing);
    ret->memory = g_key_file_get_integer(file, GROUP, "memory", NULL) != 0;
    return true;
}

int64_t sp_run_dir_rollback(const char *run_dir)
{
    g_autofree char *text = sp_run_dir_get(run_dir, SP_RUN_ROLLBACK);
    return text ? MAX(g_ascii_strtoll(text, NULL, 10), 0) : 0;
}

bool sp_run_dir_clean(const char *run_dir, GError **error)
{
    static const char *const kept[] = {SP_RUN_READY, SP_RUN_SUSPENDED, SP_RUN_ROLLBACK, "sessions",
                                       NULL};
    g_autoptr(GDir) dir = g_dir_open(run_dir, 0, NULL);
    const char *name;
    while (dir && (name = g_dir_read_name(dir))) {
        if (g_strv_contains(kept, name))
            continue;
        g_autofree char *path = g_build_filename(run_dir, name, NULL);
        struct stat st;
        if (lstat(path, &st) < 0)
            continue;
        if (S_ISDIR(st.st_mode) ? sp_tree_remove(path) < 0 : unlink(path) < 0 && errno != ENOENT)
            return fail(error, "removing", run_dir, name);
    }
    return true;
}
