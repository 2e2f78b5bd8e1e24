#include "disk/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Deeper trees are refused (ELOOP): each level holds a descriptor and a stack frame. */
#define DEPTH_MAX 512

static int open_dir(int dir_fd, const char *name)
{
    struct open_how how = {
        .flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH,
    };
    return (int)syscall(SYS_openat2, dir_fd, name, &how, sizeof(how));
}

static int remove_at(int dir_fd, const char *name, int depth);

static int remove_children(int fd, int depth)
{
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    int result = 0, saved = 0;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            if (errno != 0) {
                saved = errno;
                result = -1;
            }
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (remove_at(dirfd(dir), entry->d_name, depth + 1) < 0) {
            saved = errno;
            result = -1;
            break;
        }
    }
    closedir(dir);
    errno = saved;
    return result;
}

static int remove_at(int dir_fd, const char *name, int depth)
{
    if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT) {
        return 0;
    }
    if (errno != EISDIR && errno != EPERM) {
        return -1;
    }
    if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0) {
        return 0;
    }
    if (errno != ENOTEMPTY && errno != EEXIST) {
        return -1;
    }
    if (depth > DEPTH_MAX) {
        errno = ELOOP;
        return -1;
    }
    int fd = open_dir(dir_fd, name);
    if (fd < 0 || remove_children(fd, depth) < 0) {
        return -1;
    }
    return unlinkat(dir_fd, name, AT_REMOVEDIR);
}

int sp_tree_remove_at(int dir_fd, const char *name)
{
    return remove_at(dir_fd, name, 0);
}

int sp_tree_remove(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path || slash[1] == '\0') {
        errno = EINVAL;
        return -1;
    }
    char *parent = strndup(path, (size_t)(slash - path));
    int dir_fd = parent != NULL ? open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    int saved = errno;
    free(parent);
    if (dir_fd < 0) {
        errno = saved;
        return saved == ENOENT ? 0 : -1;
    }
    int result = remove_at(dir_fd, slash + 1, 0);
    saved = errno;
    close(dir_fd);
    errno = saved;
    return result;
}
