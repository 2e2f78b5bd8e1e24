#include "disk/clone.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

#define CHUNK (1 << 20)

/* Copies len bytes at offset, in the kernel where it can, through a buffer elsewhere. 0 or errno.
 */
static int copy_extent(int from, int to, off_t offset, off_t len)
{
    g_autofree char *buffer = NULL;
    while (len > 0) {
        off_t in = offset, out = offset;
        size_t want = (size_t)MIN(len, (off_t)1 << 30);
        ssize_t n = buffer == NULL ? copy_file_range(from, &in, to, &out, want, 0) : -1;
        if (n <= 0 && buffer == NULL) {
            /* Another file system (EXDEV), or one that says 0 or EINVAL or EOPNOTSUPP; a true error
             * comes again below. */
            buffer = g_malloc(CHUNK);
        }
        if (buffer != NULL) {
            n = pread(from, buffer, MIN(want, (size_t)CHUNK), offset);
            if (n == 0) {
                return ESTALE; /* the source shrank under us */
            }
            for (ssize_t done = 0, m; n > 0 && done < n; done += m) {
                m = pwrite(to, buffer + done, (size_t)(n - done), offset + done);
                if (m < 0) {
                    return errno;
                }
            }
        }
        if (n < 0) {
            return errno;
        }
        offset += n;
        len -= n;
    }
    return 0;
}

/* 0 or errno. The target is empty and gets the holes of the source. */
static int copy_sparse(int from, int to, off_t size)
{
    if (ftruncate(to, size) < 0) {
        return errno;
    }
    off_t offset = 0;
    while (offset < size) {
        off_t data = lseek(from, offset, SEEK_DATA);
        if (data < 0) {
            return errno == ENXIO ? 0 : errno; /* only a hole is left */
        }
        off_t hole = lseek(from, data, SEEK_HOLE);
        if (hole < 0) {
            return errno;
        }
        hole = MIN(hole, size);
        if (data < hole) {
            int failure = copy_extent(from, to, data, hole - data);
            if (failure != 0) {
                return failure;
            }
        }
        offset = MAX(hole, data);
    }
    return 0;
}

bool sp_file_clone(const char *from, const char *to, mode_t mode, bool *ret_reflinked,
                   GError **error)
{
    int source = open(from, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (source < 0 || fstat(source, &st) < 0 || !S_ISREG(st.st_mode)) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, source < 0 ? errno : EINVAL, "open %s", from);
        if (source >= 0) {
            close(source);
        }
        return false;
    }
    int target = open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (target < 0) {
        sp_error_set_errno(error, errno == EEXIST ? SP_ERROR_CONFLICT : SP_ERROR_INTERNAL, errno,
                           "make %s", to);
        close(source);
        return false;
    }
    int failure = 0;
    bool reflinked = ioctl(target, FICLONE, source) == 0;
    if (!reflinked) {
        failure = copy_sparse(source, target, st.st_size);
    }
    if (failure == 0 && fchmod(target, mode) < 0) { /* whatever the umask took away */
        failure = errno;
    }
    if (failure != 0) {
        unlink(to);
        sp_error_set_errno(error, failure == ENOSPC ? SP_ERROR_UNAVAILABLE : SP_ERROR_INTERNAL,
                           failure, "copy %s to %s", from, to);
    } else if (ret_reflinked != NULL) {
        *ret_reflinked = reflinked;
    }
    close(source);
    close(target);
    return failure == 0;
}

bool sp_file_clone_into(int from, int to, GError **error)
{
    if (ioctl(to, FICLONE, from) == 0) {
        return true;
    }
    struct stat st;
    int failure = fstat(from, &st) < 0 ? errno : copy_sparse(from, to, st.st_size);
    if (failure != 0) {
        sp_error_set_errno(error, failure == ENOSPC ? SP_ERROR_UNAVAILABLE : SP_ERROR_INTERNAL,
                           failure, "copy a file");
    }
    return failure == 0;
}
