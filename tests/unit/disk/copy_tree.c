/* Copies of trees with shifted ids. As root, on a tmpfs and a directory of its own. */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "disk/copy_tree.h"
#include "disk/tree.h"

#define BASE 0x50010000u

struct fixture {
    char *dir;
    int fd;
};

static void set_up(struct fixture *f, gconstpointer data)
{
    f->dir = g_strdup("/var/tmp/space-copy-XXXXXX");
    g_assert_nonnull(g_mkdtemp(f->dir));
    f->fd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    g_assert_cmpint(mkdirat(f->fd, "a", 0751), ==, 0);
}

static void tear_down(struct fixture *f, gconstpointer data)
{
    close(f->fd);
    g_assert_cmpint(sp_tree_remove(f->dir), ==, 0);
    g_free(f->dir);
}

static char *path(struct fixture *f, const char *name)
{
    return g_build_filename(f->dir, name, NULL);
}

static void write_file(struct fixture *f, const char *name, const char *text)
{
    g_autofree char *file = path(f, name);
    g_assert_true(g_file_set_contents(file, text, -1, NULL));
}

static struct stat look(struct fixture *f, const char *name)
{
    struct stat st;
    g_assert_cmpint(fstatat(f->fd, name, &st, AT_SYMLINK_NOFOLLOW), ==, 0);
    return st;
}

static const struct sp_id_shift out = {BASE, 0, 0x10000}, back = {0, BASE, 0x10000};

/* Out to the ids of inside and back again: nothing is lost on the way. */
static void test_everything(struct fixture *f, gconstpointer data)
{
    write_file(f, "a/file", "text");
    g_assert_cmpint(fchownat(f->fd, "a", BASE, BASE, 0), ==, 0);
    g_assert_cmpint(fchownat(f->fd, "a/file", BASE + 1000, BASE + 65535, 0), ==, 0);
    g_assert_cmpint(fchmodat(f->fd, "a/file", 06711, 0), ==, 0);
    g_assert_cmpint(linkat(f->fd, "a/file", f->fd, "a/link", 0), ==, 0);
    g_assert_cmpint(mknodat(f->fd, "a/whiteout", S_IFCHR, 0), ==, 0);
    g_assert_cmpint(symlinkat("/etc/passwd", f->fd, "a/sym"), ==, 0);
    g_assert_cmpint(fchownat(f->fd, "a/sym", BASE + 7, BASE + 8, AT_SYMLINK_NOFOLLOW), ==, 0);
    const struct timespec times[2] = {{1000, 5}, {2000, 7}};
    g_assert_cmpint(utimensat(f->fd, "a/file", times, 0), ==, 0);
    g_autofree char *a = path(f, "a");
    g_assert_cmpint(setxattr(a, "trusted.overlay.opaque", "y", 1, 0), ==, 0);
    int64_t bytes = -1;
    g_assert_cmpint(sp_copy_tree(f->fd, "a", f->fd, "b", &out, &bytes), ==, 0);
    g_assert_cmpint(bytes, ==, 4);
    g_assert_cmpint(sp_copy_tree(f->fd, "b", f->fd, "c", &back, NULL), ==, 0);
    static const struct {
        const char *dir;
        uint32_t base;
    } copies[] = {{"b", 0}, {"c", BASE}};
    for (unsigned i = 0; i < G_N_ELEMENTS(copies); i++) {
        uint32_t base = copies[i].base;
        g_autofree char *file = g_build_filename(copies[i].dir, "file", NULL);
        g_autofree char *link = g_build_filename(copies[i].dir, "link", NULL);
        g_autofree char *whiteout = g_build_filename(copies[i].dir, "whiteout", NULL);
        g_autofree char *sym = g_build_filename(copies[i].dir, "sym", NULL);
        struct stat st = look(f, copies[i].dir);
        g_assert_cmpuint(st.st_uid, ==, base);
        g_assert_cmpuint(st.st_mode, ==, S_IFDIR | 0751);
        st = look(f, file);
        g_assert_cmpuint(st.st_uid, ==, base + 1000);
        g_assert_cmpuint(st.st_gid, ==, base + 65535);
        g_assert_cmpuint(st.st_mode, ==, S_IFREG | 06711);
        g_assert_cmpint(st.st_mtim.tv_sec, ==, 2000);
        g_assert_cmpint(st.st_mtim.tv_nsec, ==, 7);
        g_assert_cmpuint(st.st_ino, ==, look(f, link).st_ino);
        st = look(f, whiteout);
        g_assert_true(S_ISCHR(st.st_mode) && st.st_rdev == 0);
        st = look(f, sym);
        g_assert_true(S_ISLNK(st.st_mode));
        g_assert_cmpuint(st.st_uid, ==, base + 7);
        g_autofree char *dir = path(f, copies[i].dir);
        char value[8];
        g_assert_cmpint(getxattr(dir, "trusted.overlay.opaque", value, sizeof value), ==, 1);
    }
}

/* Root of the user namespace in a capability, users in an access control list. */
static void test_ids_in_attributes(struct fixture *f, gconstpointer data)
{
    write_file(f, "a/cap", "x");
    g_autofree char *a_cap = path(f, "a/cap"), *b_cap = path(f, "b/cap"), *c_cap = path(f, "c/cap");
    const struct vfs_ns_cap_data cap = {.magic_etc = VFS_CAP_REVISION_3 | VFS_CAP_FLAGS_EFFECTIVE,
                                        .data = {{.permitted = 1u << CAP_NET_BIND_SERVICE}},
                                        .rootid = BASE};
    g_assert_cmpint(setxattr(a_cap, "security.capability", &cap, sizeof cap, 0), ==, 0);
    const struct {
        uint32_t version;
        struct {
            uint16_t tag, perm;
            uint32_t id;
        } e[5];
    } acl = {2, {{1, 6, ~0u}, {2, 4, BASE + 33}, {4, 4, ~0u}, {16, 4, ~0u}, {32, 0, ~0u}}};
    bool has_acl = setxattr(a_cap, "system.posix_acl_access", &acl, sizeof acl, 0) == 0;
    if (!has_acl)
        g_test_message("NOT TESTED: no access control lists here: %s", g_strerror(errno));
    g_assert_cmpint(sp_copy_tree(f->fd, "a", f->fd, "b", &out, NULL), ==, 0);
    g_assert_cmpint(sp_copy_tree(f->fd, "b", f->fd, "c", &back, NULL), ==, 0);
    unsigned char value[256];
    /* Of our own root the kernel shows it in the old form. */
    g_assert_cmpint(getxattr(b_cap, "security.capability", value, sizeof value), ==,
                    XATTR_CAPS_SZ_2);
    g_assert_cmpint(getxattr(c_cap, "security.capability", value, sizeof value), ==, sizeof cap);
    g_assert_cmpmem(value, sizeof cap, &cap, sizeof cap);
    if (!has_acl)
        return;
    g_assert_cmpint(getxattr(c_cap, "system.posix_acl_access", value, sizeof value), ==,
                    sizeof acl);
    g_assert_cmpmem(value, sizeof acl, &acl, sizeof acl);
    g_assert_cmpint(getxattr(b_cap, "system.posix_acl_access", value, sizeof value), ==,
                    sizeof acl);
    uint32_t id;
    memcpy(&id, value + 4 + 8 + 4, sizeof id);
    g_assert_cmpuint(id, ==, 33);
}

static void test_holes_and_depth(struct fixture *f, gconstpointer data)
{
    int fd = openat(f->fd, "a/holes", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    g_assert_cmpint(pwrite(fd, "x", 1, 64 << 20), ==, 1);
    g_assert_cmpint(ftruncate(fd, 128 << 20), ==, 0);
    close(fd);
    g_assert_cmpint(sp_copy_tree(f->fd, "a", f->fd, "b", &out, NULL), ==, 0);
    struct stat st = look(f, "b/holes");
    g_assert_cmpint(st.st_size, ==, 128 << 20);
    g_assert_cmpint(st.st_blocks, <, 1000);
    GString *deep = g_string_new("a");
    for (int i = 0; i < 300; i++) {
        g_string_append(deep, "/d");
        g_assert_cmpint(mkdirat(f->fd, deep->str, 0700), ==, 0);
    }
    g_string_free(deep, TRUE);
    g_assert_cmpint(sp_copy_tree(f->fd, "a", f->fd, "c", &out, NULL), ==, -1);
    g_assert_cmpint(errno, ==, ELOOP);
    g_assert_cmpint(sp_copy_tree(f->fd, "a", f->fd, "b", &out, NULL), ==, -1);
    g_assert_cmpint(errno, ==, EEXIST);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    if (geteuid() != 0) {
        g_printerr("NOT TESTED: copies of trees need root\n");
        g_print("1..0 # SKIP NOT TESTED: copies of trees need root\n");
        return 0;
    }
#define ADD(name, function)                                                                        \
    g_test_add("/copy_tree/" name, struct fixture, NULL, set_up, function, tear_down)
    ADD("everything", test_everything);
    ADD("ids_in_attributes", test_ids_in_attributes);
    ADD("holes_and_depth", test_holes_and_depth);
    return g_test_run();
}
