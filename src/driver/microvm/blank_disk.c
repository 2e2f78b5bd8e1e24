#include "driver/microvm/blank_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/program.h"
#include "os/file_lock.h"
#include "os/cleanup.h"

#define MKFS_TIMEOUT_MS 60000

static bool make(const char *path, int64_t disk_mb, GError **error)
{
    SP_CLEANUP(sp_close_fdp)
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || ftruncate(fd, disk_mb * 1024 * 1024) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "blank disk %s", path);
        return false;
    }
    /* The file is all zeros, so tables and journal need not be written; no blocks are set aside for
     * root; an inode for every 8 KiB, for package trees of small files. */
    const char *argv[] = {"mke2fs",
                          "-q",
                          "-F",
                          "-t",
                          "ext4",
                          "-m",
                          "0",
                          "-i",
                          "8192",
                          "-E",
                          "lazy_itable_init=1,lazy_journal_init=1,nodiscard",
                          path,
                          NULL};
    struct sp_program program = {.argv = argv, .timeout_ms = MKFS_TIMEOUT_MS};
    if (!sp_program_run(&program, error))
        return false;
    if (fsync(fd) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "sync %s", path);
        return false;
    }
    return true;
}

char *sp_blank_disk(const char *dir, int64_t disk_mb, GError **error)
{
    g_autofree char *folder = g_build_filename(dir, "blank", NULL);
    g_autofree char *path = g_strdup_printf("%s/%" G_GINT64_FORMAT ".ext4", folder, disk_mb);
    if (access(path, F_OK) == 0)
        return g_steal_pointer(&path);
    if (g_mkdir_with_parents(folder, 0700) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", folder);
        return NULL;
    }
    g_autofree char *lock_path = g_strconcat(path, ".lock", NULL);
    SP_CLEANUP(sp_close_fdp) int lock = sp_file_lock(lock_path, 2 * MKFS_TIMEOUT_MS, error);
    if (lock < 0)
        return NULL;
    if (access(path, F_OK) == 0)
        return g_steal_pointer(&path);
    g_autofree char *temporary = g_strconcat(path, ".new", NULL);
    if (!make(temporary, disk_mb, error)) {
        unlink(temporary);
        return NULL;
    }
    if (rename(temporary, path) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "rename to %s", path);
        unlink(temporary);
        return NULL;
    }
    return g_steal_pointer(&path);
}
