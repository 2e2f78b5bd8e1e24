#include "driver/microvm/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/digest.h"

#define CHUNK_BYTES (1024u * 1024u)
#define BLOCK_BYTES 4096u

static bool fail(GError **error, const char *what)
{
    /* A full disk or a bad sector is the host's trouble, not a fault of ours. */
    bool host = errno == ENOSPC || errno == EDQUOT || errno == EIO;
    sp_error_set_errno(error, host ? SP_ERROR_UNAVAILABLE : SP_ERROR_INTERNAL, errno,
                       "guest memory: %s", what);
    return false;
}

int sp_memory_new(const char *name, int64_t size_bytes, GError **error)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        fail(error, "memfd_create");
        return -1;
    }
    if (ftruncate(fd, size_bytes) < 0) {
        fail(error, "size");
        close(fd);
        return -1;
    }
    return fd;
}

bool sp_memory_seal(int fd, GError **error)
{
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return fail(error, "seal");
    return true;
}

bool sp_memory_write(int fd, const void *from, size_t len, int64_t at, GError **error)
{
    const uint8_t *bytes = from;
    while (len > 0) {
        ssize_t n = pwrite(fd, bytes, len, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(error, "write");
        bytes += n;
        len -= (size_t)n;
        at += n;
    }
    return true;
}

int sp_memory_from_bytes(const char *name, const void *bytes, size_t len, GError **error)
{
    int fd = sp_memory_new(name, (int64_t)len, error);
    if (fd < 0)
        return -1;
    if (!sp_memory_write(fd, bytes, len, 0, error) || !sp_memory_seal(fd, error)) {
        close(fd);
        return -1;
    }
    return fd;
}

bool sp_memory_is_zero(const void *from, size_t len)
{
    const uint8_t *bytes = from;
    return len == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0);
}

/* --- the digest --- */

struct sp_memory_digest {
    struct sp_digest *sha;
    int64_t data_bytes;
};

struct sp_memory_digest *sp_memory_digest_new(void)
{
    struct sp_memory_digest *digest = g_new0(struct sp_memory_digest, 1);
    digest->sha = sp_digest_new();
    return digest;
}

static void digest_block(struct sp_memory_digest *digest, const uint8_t *bytes, size_t len,
                         off_t at)
{
    uint64_t offset = GUINT64_TO_LE((uint64_t)at);
    sp_digest_add(digest->sha, &offset, sizeof offset);
    sp_digest_add(digest->sha, bytes, len);
    digest->data_bytes += (int64_t)len;
}

void sp_memory_digest_add(struct sp_memory_digest *digest, const void *from, size_t len, int64_t at)
{
    const uint8_t *bytes = from;
    for (size_t i = 0; i < len; i += BLOCK_BYTES) {
        if (!sp_memory_is_zero(bytes + i, MIN(BLOCK_BYTES, len - i)))
            digest_block(digest, bytes + i, MIN(BLOCK_BYTES, len - i), at + (off_t)i);
    }
}

void sp_memory_digest_end(struct sp_memory_digest *digest, struct sp_memory_copied *ret)
{
    if (ret)
        ret->data_bytes = digest->data_bytes;
    sp_digest_end(digest->sha, ret ? ret->sha256 : NULL);
    g_free(digest);
}

/* --- copies --- */

struct copy {
    int from, to;
    uint8_t *buffer;                 /* CHUNK_BYTES */
    struct sp_memory_digest *digest; /* may be NULL */
};

/* Writes the runs of blocks that are not zero. */
static bool copy_blocks(struct copy *copy, size_t len, off_t at, GError **error)
{
    const uint8_t *bytes = copy->buffer;
    size_t start = 0;
    while (start < len) {
        size_t end = start;
        while (end < len && !sp_memory_is_zero(bytes + end, MIN(BLOCK_BYTES, len - end))) {
            size_t n = MIN(BLOCK_BYTES, len - end);
            if (copy->digest)
                digest_block(copy->digest, bytes + end, n, at + (off_t)end);
            end += n;
        }
        if (end > start && copy->to >= 0 &&
            !sp_memory_write(copy->to, bytes + start, end - start, at + (off_t)start, error))
            return false;
        start = end + BLOCK_BYTES;
    }
    return true;
}

bool sp_memory_read(int fd, void *to, size_t len, int64_t at, GError **error)
{
    uint8_t *bytes = to;
    while (len > 0) {
        ssize_t n = pread(fd, bytes, len, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(error, "read");
        if (n == 0) {
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "guest memory: file is cut short");
            return false;
        }
        bytes += n;
        len -= (size_t)n;
        at += n;
    }
    return true;
}

static bool copy_range(struct copy *copy, off_t at, off_t end, GError **error)
{
    while (at < end) {
        size_t wanted = (size_t)MIN((off_t)CHUNK_BYTES, end - at);
        if (!sp_memory_read(copy->from, copy->buffer, wanted, at, error) ||
            !copy_blocks(copy, wanted, at, error))
            return false;
        at += (off_t)wanted;
    }
    return true;
}

static bool copy_all(struct copy *copy, off_t size, GError **error)
{
    off_t at = 0;
    while (at < size) {
        off_t data = lseek(copy->from, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return true;
        off_t hole = data < 0 ? -1 : lseek(copy->from, data, SEEK_HOLE);
        if (hole < 0)
            return fail(error, "seek");
        /* Ranges are widened to whole blocks, so that the digest does not depend on where a file
         * system puts its holes. */
        data = MAX(at, data - data % BLOCK_BYTES);
        hole = MIN(size, hole + (BLOCK_BYTES - hole % BLOCK_BYTES) % BLOCK_BYTES);
        if (!copy_range(copy, data, hole, error))
            return false;
        at = hole;
    }
    return true;
}

bool sp_memory_copy(int from, int to, struct sp_memory_copied *ret, GError **error)
{
    struct stat st;
    if (fstat(from, &st) < 0 || (to >= 0 && ftruncate(to, st.st_size) < 0))
        return fail(error, "size");
    g_autofree uint8_t *buffer = g_malloc(CHUNK_BYTES);
    struct copy copy = {.from = from, .to = to, .buffer = buffer};
    if (!ret)
        return copy_all(&copy, st.st_size, error);
    copy.digest = sp_memory_digest_new();
    bool ok = copy_all(&copy, st.st_size, error);
    sp_memory_digest_end(copy.digest, ok ? ret : NULL);
    if (ok)
        ret->size_bytes = st.st_size;
    return ok;
}
