#include "disk/image.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/loop.h"
#include "disk/mount_point.h"
#include "disk/template.h"
#include "os/file_lock.h"
#include "os/mount.h"

#define LOCK_MS 30000
#define LOOP_CLEAR_MS 3000

struct sp_images {
    char *dir; /* <state>/run/images */
};

struct sp_images *sp_images_new(const char *state_dir)
{
    struct sp_images *images = g_new0(struct sp_images, 1);
    images->dir = g_build_filename(state_dir, "run", "images", NULL);
    return images;
}

void sp_images_free(struct sp_images *images)
{
    if (images != NULL) {
        g_free(images->dir);
        g_free(images);
    }
}

/* The lock also keeps threads apart: flock(2) belongs to the open file, and each call opens its
 * own. */
static int lock_images(struct sp_images *images, GError **error)
{
    if (g_mkdir_with_parents(images->dir, 0711) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", images->dir);
        return -1;
    }
    g_autofree char *path = g_build_filename(images->dir, ".lock", NULL);
    return sp_file_lock(path, LOCK_MS, error);
}

static bool mount_image(const char *image, const char *target, GError **error)
{
    if (mkdir(target, 0700) < 0 && errno != EEXIST) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", target);
        return false;
    }
    int file = open(image, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) {
        sp_error_set_errno(error, errno == ENOENT ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, errno,
                           "open %s", image);
        rmdir(target);
        return false;
    }
    char device[SP_LOOP_PATH_MAX];
    int loop = sp_loop_attach(file, true, device, error);
    close(file);
    if (loop < 0) {
        rmdir(target);
        return false;
    }
    bool mounted = mount(device, target, "erofs", MS_RDONLY | MS_NODEV | MS_NOSUID, NULL) == 0;
    if (!mounted) {
        sp_error_set_errno(error, errno == ENODEV ? SP_ERROR_UNSUPPORTED : SP_ERROR_INTERNAL, errno,
                           "mount %s", image);
        rmdir(target);
    }
    close(loop);
    return mounted;
}

char *sp_images_mount(struct sp_images *images, const char *template_dir, GError **error)
{
    g_autofree char *hex = g_path_get_basename(template_dir);
    if (!sp_template_hex_valid(hex)) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "not a template: %s", template_dir);
        return NULL;
    }
    g_autofree char *target = g_build_filename(images->dir, hex, NULL);
    if (sp_mount_is_point(target)) {
        return g_steal_pointer(&target);
    }
    int lock = lock_images(images, error);
    if (lock < 0) {
        return NULL;
    }
    g_autofree char *image = g_build_filename(template_dir, "image.erofs", NULL);
    bool mounted = sp_mount_is_point(target) || mount_image(image, target, error);
    close(lock);
    return mounted ? g_steal_pointer(&target) : NULL;
}

static bool unmount_image(struct sp_images *images, const char *hex, GError **error)
{
    g_autofree char *target = g_build_filename(images->dir, hex, NULL);
    if (!sp_mount_point_remove(target, LOOP_CLEAR_MS, error)) {
        return false;
    }
    if (rmdir(target) < 0 && errno != ENOENT) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove %s", target);
        return false;
    }
    return true;
}

static bool unmount_all(struct sp_images *images, GError **error)
{
    g_autoptr(GDir) dir = g_dir_open(images->dir, 0, NULL);
    bool done = true;
    const char *name;
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        /* The first error is told, the rest is still tried. */
        if (sp_template_hex_valid(name) && !unmount_image(images, name, done ? error : NULL)) {
            done = false;
        }
    }
    return done;
}

bool sp_images_unmount(struct sp_images *images, const char *digest, GError **error)
{
    const char *hex = digest != NULL ? sp_template_digest_hex(digest) : NULL;
    if (digest != NULL && hex == NULL) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "not a digest: %s", digest);
        return false;
    }
    if (access(images->dir, F_OK) < 0) {
        return true;
    }
    int lock = lock_images(images, error);
    if (lock < 0) {
        return false;
    }
    bool done = hex != NULL ? unmount_image(images, hex, error) : unmount_all(images, error);
    close(lock);
    return done;
}
