#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk/loop.h"
#include "disk/tree.h"

bool scratch_may_mount(void)
{
    if (geteuid() != 0 || access("/dev/loop-control", R_OK | W_OK) < 0) {
        g_test_skip("NOT TESTED: needs root and loop devices");
        return false;
    }
    /* In a mount namespace of our own: what a failed test has mounted goes when the program ends, and the loop
     * devices with it. */
    static bool apart;
    if (!apart) {
        g_assert_cmpint(unshare(CLONE_NEWNS), ==, 0);
        /* MS_PRIVATE fails in a chroot that is not a mount point: then the mounts are shared at worst. */
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
            g_test_message("mounts are not private: %s", g_strerror(errno));
        apart = true;
    }
    return true;
}

char *scratch_begin(void)
{
    GError *error = NULL;
    char *state = g_dir_make_tmp("space-disk-XXXXXX", &error);
    g_assert_no_error(error);
    return state;
}

unsigned scratch_mounts(const char *state)
{
    g_autofree char *text = NULL;
    g_assert_true(g_file_get_contents("/proc/self/mountinfo", &text, NULL, NULL));
    unsigned count = 0;
    for (const char *p = text; (p = strstr(p, state)) != NULL; p++) {
        count++;
    }
    return count;
}

unsigned scratch_loops(const char *state)
{
    unsigned count = 0;
    g_autoptr(GDir) dir = g_dir_open("/sys/block", 0, NULL);
    const char *name;
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *device = g_strconcat("/dev/", name, NULL);
        g_autofree char *file = sp_loop_backing_file(device);
        if (file != NULL && g_str_has_prefix(file, state)) {
            count++;
        }
    }
    return count;
}

unsigned scratch_loops_settled(const char *state)
{
    unsigned count = scratch_loops(state);
    for (int i = 0; i < 500 && count > 0; i++) {
        g_usleep(10000);
        count = scratch_loops(state);
    }
    return count;
}

void scratch_end(char *state)
{
    g_autoptr(GError) error = NULL;
    sp_volume_unmount(state, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(scratch_mounts(state), ==, 0);
    g_assert_cmpuint(scratch_loops_settled(state), ==, 0);
    g_assert_cmpint(sp_tree_remove(state), ==, 0);
    g_free(state);
}

struct sp_volume *scratch_volume(const char *state)
{
    g_autoptr(GError) error = NULL;
    struct sp_volume *volume = sp_volume_open(state, 512 << 20, &error);
    g_assert_no_error(error);
    g_assert_nonnull(volume);
    g_assert_cmpstr(sp_volume_reason(volume), ==, NULL);
    g_assert_cmpint(sp_volume_kind(volume), ==, SP_VOLUME_BTRFS);
    return volume;
}

struct sp_volume *scratch_plain_volume(const char *state)
{
    g_autofree char *bin = g_build_filename(state, "bin", NULL);
    g_autofree char *mkfs = g_build_filename(bin, "mkfs.btrfs", NULL);
    g_mkdir_with_parents(bin, 0755);
    g_assert_true(
        g_file_set_contents(mkfs, "#!/bin/sh\necho no such luck >&2\nexit 3\n", -1, NULL));
    g_assert_cmpint(chmod(mkfs, 0755), ==, 0);
    g_autofree char *saved = g_strdup(g_getenv("PATH"));
    g_autofree char *path = g_strconcat(bin, ":", saved, NULL);
    g_setenv("PATH", path, TRUE);
    g_autoptr(GError) error = NULL;
    struct sp_volume *volume = sp_volume_open(state, 512 << 20, &error);
    g_setenv("PATH", saved, TRUE);
    g_assert_no_error(error);
    g_assert_nonnull(volume);
    g_assert_cmpint(sp_volume_kind(volume), ==, SP_VOLUME_PLAIN);
    return volume;
}

gint64 scratch_fill(const char *path, gint64 len, int *ret_errno)
{
    static char block[1 << 16];
    memset(block, 'x', sizeof(block));
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    *ret_errno = fd < 0 ? errno : 0;
    gint64 done = 0;
    while (fd >= 0 && done < len) {
        ssize_t n = write(fd, block, sizeof(block));
        if (n < 0) {
            *ret_errno = errno;
            break;
        }
        done += n;
    }
    if (fd >= 0) {
        if (fsync(fd) < 0 && *ret_errno == 0) {
            *ret_errno = errno;
        }
        close(fd);
    }
    return done;
}
