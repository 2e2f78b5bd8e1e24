#include "cli/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "os/cleanup.h"

#define TAIL_BYTES 2000

static char *file_of(const struct sp_state_dir *state, const char *daemon)
{
    g_autofree char *name = g_strdup_printf("log/%s.log", daemon);
    return sp_state_dir_file(state, name);
}

int sp_log_file_open(const struct sp_state_dir *state, const char *daemon, GError **error)
{
    g_autofree char *path = file_of(state, daemon);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "cannot open %s", path);
    return fd;
}

static bool copy_to(int from, off_t bytes, const char *path)
{
    SP_CLEANUP(sp_close_fdp)
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    off_t at = 0;
    while (to >= 0 && at < bytes) {
        ssize_t n = copy_file_range(from, &at, to, NULL, (size_t)(bytes - at), 0);
        if (n <= 0)
            return false;
    }
    return to >= 0;
}

void sp_log_file_rotate(const struct sp_state_dir *state, const char *daemon)
{
    g_autofree char *path = file_of(state, daemon);
    struct stat st;
    if (stat(path, &st) != 0 || st.st_size < SP_LOG_FILE_MAX_BYTES)
        return;
    g_autofree char *older = g_strconcat(path, ".1", NULL);
    SP_CLEANUP(sp_close_fdp) int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    copy_to(fd, st.st_size, older); /* the bound matters more than the copy */
    if (ftruncate(fd, 0) != 0)
        fprintf(stderr, "space: cannot empty %s: %s\n", path, g_strerror(errno));
}

char *sp_log_file_tail(const struct sp_state_dir *state, const char *daemon)
{
    g_autofree char *path = file_of(state, daemon);
    SP_CLEANUP(sp_close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    char buffer[TAIL_BYTES + 1];
    if (fd < 0 || fstat(fd, &st) != 0)
        return NULL;
    ssize_t n = pread(fd, buffer, TAIL_BYTES, MAX(0, st.st_size - TAIL_BYTES));
    if (n <= 0)
        return NULL;
    buffer[n] = '\0';
    return g_utf8_make_valid(buffer, n);
}
