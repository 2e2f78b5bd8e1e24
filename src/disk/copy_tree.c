#include "disk/copy_tree.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "os/cleanup.h"

#define MAX_DEPTH 256
#define BLOCK (1 << 20)
#define PATH_BYTES (NAME_MAX + 32)

struct copy {
    const struct sp_id_shift *shift;
    int root;          /* the directory that the copy is made in */
    GString *path;     /* of what is being copied, seen from root */
    GHashTable *links; /* inode number of a file with several names → path of its first copy */
    char *buffer;      /* BLOCK bytes */
    int64_t bytes;
};

static uint32_t shifted(const struct sp_id_shift *shift, uint32_t id)
{
    return id - shift->from < shift->count ? id - shift->from + shift->to : id;
}

/* A name in an open directory as a path: what the calls on extended attributes need to reach
 * links and devices themselves. */
static void path_of(int dir, const char *name, char ret[PATH_BYTES])
{
    g_snprintf(ret, PATH_BYTES, "/proc/self/fd/%d/%s", dir, name);
}

/* --- extended attributes --- */

/* The kernel shows revision 2 for root of the first user namespace, revision 3 with the uid of root
 * for others, and takes both. Returns the new length. */
static size_t shift_capability(const struct sp_id_shift *shift, unsigned char *value, size_t len)
{
    struct vfs_ns_cap_data cap = {0};
    if (len != XATTR_CAPS_SZ_2 && len != XATTR_CAPS_SZ_3)
        return len;
    memcpy(&cap, value, len);
    uint32_t root = len == XATTR_CAPS_SZ_3 ? le32toh(cap.rootid) : 0;
    uint32_t magic = le32toh(cap.magic_etc) & ~(uint32_t)VFS_CAP_REVISION_MASK;
    root = shifted(shift, root);
    cap.rootid = htole32(root);
    len = root == 0 ? XATTR_CAPS_SZ_2 : XATTR_CAPS_SZ_3;
    cap.magic_etc = htole32(magic | (root == 0 ? VFS_CAP_REVISION_2 : VFS_CAP_REVISION_3));
    memcpy(value, &cap, len);
    return len;
}

/* linux/posix_acl_xattr.h: a version, then entries of tag, permissions, id. */
static void shift_acl(const struct sp_id_shift *shift, unsigned char *value, size_t len)
{
    for (size_t at = 4; at + 8 <= len; at += 8) {
        uint16_t tag;
        uint32_t id;
        memcpy(&tag, value + at, sizeof tag);
        memcpy(&id, value + at + 4, sizeof id);
        tag = le16toh(tag);
        if (tag != 0x02 && tag != 0x08) /* ACL_USER, ACL_GROUP */
            continue;
        id = htole32(shifted(shift, le32toh(id)));
        memcpy(value + at + 4, &id, sizeof id);
    }
}

static int copy_attribute(struct copy *c, const char *from, const char *to, const char *name)
{
    unsigned char value[XATTR_SIZE_MAX];
    ssize_t n = lgetxattr(from, name, value, sizeof value);
    if (n < 0)
        return -1;
    size_t len = (size_t)n;
    if (strcmp(name, "security.capability") == 0)
        len = shift_capability(c->shift, value, len);
    else if (g_str_has_prefix(name, "system.posix_acl_"))
        shift_acl(c->shift, value, len);
    return lsetxattr(to, name, value, len, 0);
}

static int copy_attributes(struct copy *c, const char *from, const char *to)
{
    char names[XATTR_LIST_MAX];
    ssize_t len = llistxattr(from, names, sizeof names);
    if (len < 0)
        return errno == EOPNOTSUPP ? 0 : -1;
    for (ssize_t at = 0; at < len; at += (ssize_t)strlen(names + at) + 1)
        if (copy_attribute(c, from, to, names + at) < 0)
            return -1;
    return 0;
}

/* --- what a name is --- */

static int copy_range(struct copy *c, int from, int to, off_t at, off_t end)
{
    while (at < end) {
        ssize_t n = pread(from, c->buffer, (size_t)MIN(end - at, BLOCK), at);
        if (n == 0)
            return 0;
        for (ssize_t done = 0; done < n;) {
            ssize_t w = pwrite(to, c->buffer + done, (size_t)(n - done), at + done);
            if (w < 0 && errno != EINTR)
                return -1;
            done += MAX(w, 0);
        }
        if (n < 0 && errno != EINTR)
            return -1;
        at += MAX(n, 0);
        c->bytes += MAX(n, 0);
    }
    return 0;
}

static int copy_data(struct copy *c, int from, int to, off_t size)
{
    for (off_t at = 0; at < size;) {
        off_t data = lseek(from, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break;
        off_t hole = data < 0 ? -1 : lseek(from, data, SEEK_HOLE);
        if (hole < 0 || copy_range(c, from, to, data, hole) < 0)
            return -1;
        at = hole;
    }
    return ftruncate(to, size);
}

static int copy_file(struct copy *c, int from_dir, const char *from_name, int to_dir,
                     const char *to_name, const struct stat *st)
{
    SP_CLEANUP(sp_close_fdp)
    int from = openat(from_dir, from_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    SP_CLEANUP(sp_close_fdp)
    int to = from < 0 ? -1 : openat(to_dir, to_name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return to < 0 ? -1 : copy_data(c, from, to, st->st_size);
}

static int copy_symlink(int from_dir, const char *from_name, int to_dir, const char *to_name)
{
    char target[4096];
    ssize_t n = readlinkat(from_dir, from_name, target, sizeof target - 1);
    if (n < 0)
        return -1;
    target[n] = '\0';
    return symlinkat(target, to_dir, to_name);
}

/* 1: it was linked to an earlier copy; 0: it is the first; -1 with errno. */
static int link_to_first(struct copy *c, const struct stat *st, int to_dir, const char *to_name)
{
    const guint64 inode = st->st_ino;
    const char *first = g_hash_table_lookup(c->links, &inode);
    if (first)
        return linkat(c->root, first, to_dir, to_name, 0) < 0 ? -1 : 1;
    g_hash_table_insert(c->links, g_memdup2(&inode, sizeof inode), g_strdup(c->path->str));
    return 0;
}

static int copy_one(struct copy *c, int from_dir, const char *from_name, int to_dir,
                    const char *to_name, unsigned depth);

static int copy_children(struct copy *c, int from_dir, const char *from_name, int to_dir,
                         const char *to_name, unsigned depth)
{
    int from = openat(from_dir, from_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = from < 0 ? NULL : fdopendir(from);
    SP_CLEANUP(sp_close_fdp)
    int to = !dir ? -1 : openat(to_dir, to_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int result = to < 0 ? -1 : 0;
    while (result == 0) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry) {
            result = errno ? -1 : 0;
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        gsize len = c->path->len;
        g_string_append_printf(c->path, "/%s", entry->d_name);
        result = copy_one(c, from, entry->d_name, to, entry->d_name, depth + 1);
        g_string_truncate(c->path, len);
    }
    int saved = errno;
    if (dir)
        closedir(dir);
    else if (from >= 0)
        close(from);
    errno = saved;
    return result;
}

/* Owner before mode (a change of owner takes setuid away), attributes after the owner (it takes
 * capabilities away), times last. */
static int copy_facts(struct copy *c, int from_dir, const char *from_name, int to_dir,
                      const char *to_name, const struct stat *st)
{
    char from[PATH_BYTES], to[PATH_BYTES];
    path_of(from_dir, from_name, from);
    path_of(to_dir, to_name, to);
    const struct timespec times[2] = {st->st_atim, st->st_mtim};
    if (fchownat(to_dir, to_name, shifted(c->shift, st->st_uid), shifted(c->shift, st->st_gid),
                 AT_SYMLINK_NOFOLLOW) < 0 ||
        (!S_ISLNK(st->st_mode) && fchmodat(to_dir, to_name, st->st_mode & 07777, 0) < 0) ||
        copy_attributes(c, from, to) < 0)
        return -1;
    return utimensat(to_dir, to_name, times, AT_SYMLINK_NOFOLLOW);
}

static int copy_one(struct copy *c, int from_dir, const char *from_name, int to_dir,
                    const char *to_name, unsigned depth)
{
    struct stat st;
    if (depth > MAX_DEPTH) {
        errno = ELOOP;
        return -1;
    }
    if (fstatat(from_dir, from_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    bool several = !S_ISDIR(st.st_mode) && st.st_nlink > 1;
    int r = several ? link_to_first(c, &st, to_dir, to_name) : 0;
    if (r != 0)
        return r < 0 ? -1 : 0;
    if (S_ISREG(st.st_mode))
        r = copy_file(c, from_dir, from_name, to_dir, to_name, &st);
    else if (S_ISLNK(st.st_mode))
        r = copy_symlink(from_dir, from_name, to_dir, to_name);
    else if (S_ISDIR(st.st_mode))
        r = mkdirat(to_dir, to_name, 0700) < 0
                ? -1
                : copy_children(c, from_dir, from_name, to_dir, to_name, depth);
    else
        r = mknodat(to_dir, to_name, (st.st_mode & S_IFMT) | 0600, st.st_rdev);
    return r < 0 ? -1 : copy_facts(c, from_dir, from_name, to_dir, to_name, &st);
}

int sp_copy_tree(int from_dir, const char *from_name, int to_dir, const char *to_name,
                 const struct sp_id_shift *shift, int64_t *ret_bytes)
{
    struct copy c = {
        .shift = shift,
        .root = to_dir,
        .path = g_string_new(to_name),
        .links = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free),
        .buffer = g_malloc(BLOCK),
    };
    int result = copy_one(&c, from_dir, from_name, to_dir, to_name, 0);
    int saved = errno;
    g_hash_table_destroy(c.links);
    g_string_free(c.path, TRUE);
    g_free(c.buffer);
    if (result == 0 && ret_bytes)
        *ret_bytes = c.bytes;
    errno = saved;
    return result;
}
