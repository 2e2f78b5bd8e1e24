#include "disk/mount_point.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/loop.h"
#include "os/mount.h"

/* The device that the topmost mount at path was made from; NULL: not found. proc(5), mountinfo. */
static char *mount_source(const char *path)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents("/proc/self/mountinfo", &text, NULL, NULL)) {
        return NULL;
    }
    /* The kernel writes blanks and backslashes of paths in octal. */
    GString *escaped = g_string_new(NULL);
    for (const char *p = path; *p != '\0'; p++) {
        if (strchr(" \t\n\\", *p) != NULL) {
            g_string_append_printf(escaped, "\\%03o", (unsigned char)*p);
        } else {
            g_string_append_c(escaped, *p);
        }
    }
    char *source = NULL;
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (size_t i = 0; lines[i] != NULL; i++) {
        g_auto(GStrv) halves = g_strsplit(lines[i], " - ", 2);
        if (g_strv_length(halves) != 2) {
            continue;
        }
        g_auto(GStrv) left = g_strsplit(halves[0], " ", 6);
        g_auto(GStrv) right = g_strsplit(halves[1], " ", 3);
        if (g_strv_length(left) >= 5 && g_strv_length(right) >= 2 &&
            strcmp(left[4], escaped->str) == 0) {
            g_free(source);
            source = g_strdup(right[1]);
        }
    }
    g_string_free(escaped, TRUE);
    return source;
}

bool sp_mount_point_remove(const char *path, int timeout_ms, GError **error)
{
    if (!sp_mount_is_point(path)) {
        return true;
    }
    g_autofree char *real = realpath(path, NULL);
    g_autofree char *source = mount_source(real != NULL ? real : path);
    g_autofree char *backing = source != NULL ? sp_loop_backing_file(source) : NULL;
    int64_t deadline = sp_time_monotonic_ms() + timeout_ms;
    int failed = umount2(path, UMOUNT_NOFOLLOW);
    /* The kernel takes a dead sandbox's mounts down some time after its last process has gone. */
    while (failed < 0 && errno == EBUSY && sp_time_monotonic_ms() < deadline) {
        g_usleep(5000);
        failed = umount2(path, UMOUNT_NOFOLLOW);
    }
    if (failed < 0) {
        sp_error_set_errno(error, errno == EBUSY ? SP_ERROR_FAILED_PRECONDITION : SP_ERROR_INTERNAL,
                           errno, "unmount %s", path);
        return false;
    }
    /* The device may have got another file since; that is as good as clear. */
    while (backing != NULL) {
        g_autofree char *now = sp_loop_backing_file(source);
        if (g_strcmp0(now, backing) != 0) {
            break;
        }
        if (sp_time_monotonic_ms() >= deadline)
            break; /* a mount namespace of somebody else has a copy; the device goes with it */
        g_usleep(2000);
    }
    return true;
}
