#include "driver/microvm/guest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/cpio.h"
#include "driver/microvm/digest.h"
#include "driver/microvm/memory.h"

#define MAX_MODULES 64
#define MAX_FILE_BYTES (32u * 1024 * 1024)

/* "inode size mtime" of the files that decide. */
static char *stamp_of(const char *guest_dir, const char *agent_path)
{
    g_autofree char *kernel = g_build_filename(guest_dir, "vmlinux", NULL);
    g_autofree char *order = g_build_filename(guest_dir, "modules", "order", NULL);
    const char *paths[] = {kernel, order, agent_path};
    GString *stamp = g_string_new(NULL);
    for (unsigned i = 0; i < G_N_ELEMENTS(paths); i++) {
        struct stat st;
        if (stat(paths[i], &st) < 0)
            memset(&st, 0, sizeof st);
        g_string_append_printf(stamp, "%ju %jd %jd.%09ld;", (uintmax_t)st.st_ino,
                               (intmax_t)st.st_size, (intmax_t)st.st_mtim.tv_sec,
                               st.st_mtim.tv_nsec);
    }
    return g_string_free(stamp, FALSE);
}

bool sp_guest_is_current(const struct sp_guest *guest, const char *guest_dir,
                         const char *agent_path)
{
    g_autofree char *stamp = stamp_of(guest_dir, agent_path);
    return strcmp(stamp, guest->stamp) == 0;
}

static bool read_file(const char *path, char **ret_bytes, gsize *ret_len, GError **error)
{
    g_autoptr(GError) cause = NULL;
    if (!g_file_get_contents(path, ret_bytes, ret_len, &cause)) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "guest files: %s", cause->message);
        return false;
    }
    if (*ret_len <= MAX_FILE_BYTES)
        return true;
    g_clear_pointer(ret_bytes, g_free);
    g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "guest files: %s is too large", path);
    return false;
}

static bool add_file(GByteArray *archive, const char *path, const char *name, mode_t mode,
                     GError **error)
{
    g_autofree char *bytes = NULL;
    gsize len;
    if (!read_file(path, &bytes, &len, error))
        return false;
    sp_cpio_add_file(archive, name, mode, bytes, len);
    return true;
}

static bool add_modules(GByteArray *archive, const char *guest_dir, GError **error)
{
    g_autofree char *dir = g_build_filename(guest_dir, "modules", NULL);
    g_autofree char *order_path = g_build_filename(dir, "order", NULL);
    g_autofree char *order = NULL;
    gsize len;
    if (!read_file(order_path, &order, &len, error))
        return false;
    sp_cpio_add_directory(archive, "modules", 0755);
    sp_cpio_add_file(archive, "modules/order", 0644, order, len);
    g_auto(GStrv) names = g_strsplit(order, "\n", MAX_MODULES + 1);
    for (unsigned i = 0; names[i]; i++) {
        if (names[i][0] == '\0')
            continue;
        if (strchr(names[i], '/') || i == MAX_MODULES) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "guest files: bad modules/order");
            return false;
        }
        g_autofree char *path = g_build_filename(dir, names[i], NULL);
        g_autofree char *name = g_build_filename("modules", names[i], NULL);
        if (!add_file(archive, path, name, 0644, error))
            return false;
    }
    return true;
}

static GByteArray *build_initramfs(const char *guest_dir, const char *agent_path, GError **error)
{
    g_autoptr(GByteArray) archive = g_byte_array_new();
    /* The kernel opens /dev/console for its first process; devtmpfs comes only later. */
    sp_cpio_add_directory(archive, "dev", 0755);
    if (!add_file(archive, agent_path, "init", 0755, error) ||
        !add_modules(archive, guest_dir, error))
        return NULL;
    sp_cpio_finish(archive);
    return g_steal_pointer(&archive);
}

static bool load_kernel(struct sp_guest *guest, const char *guest_dir, GError **error)
{
    g_autofree char *path = g_build_filename(guest_dir, "vmlinux", NULL);
    guest->kernel_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (guest->kernel_fd < 0) {
        sp_error_set_errno(error, SP_ERROR_UNSUPPORTED, errno, "guest kernel %s", path);
        return false;
    }
    return sp_digest_fd(guest->kernel_fd, guest->kernel_sha256, error);
}

static bool load_initramfs(struct sp_guest *guest, const char *guest_dir, const char *agent_path,
                           GError **error)
{
    g_autoptr(GByteArray) archive = build_initramfs(guest_dir, agent_path, error);
    if (!archive)
        return false;
    guest->initramfs_fd =
        sp_memory_from_bytes("space-initramfs", archive->data, archive->len, error);
    return guest->initramfs_fd >= 0 &&
           sp_digest_fd(guest->initramfs_fd, guest->initramfs_sha256, error);
}

struct sp_guest *sp_guest_load(const char *guest_dir, const char *agent_path, GError **error)
{
    struct sp_guest *guest = g_new0(struct sp_guest, 1);
    g_atomic_ref_count_init(&guest->refs);
    guest->kernel_fd = guest->initramfs_fd = -1;
    guest->stamp = stamp_of(guest_dir, agent_path);
    if (!load_kernel(guest, guest_dir, error) ||
        !load_initramfs(guest, guest_dir, agent_path, error))
        g_clear_pointer(&guest, sp_guest_unref);
    return guest;
}

struct sp_guest *sp_guest_ref(struct sp_guest *guest)
{
    g_atomic_ref_count_inc(&guest->refs);
    return guest;
}

void sp_guest_unref(struct sp_guest *guest)
{
    if (!guest || !g_atomic_ref_count_dec(&guest->refs))
        return;
    if (guest->kernel_fd >= 0)
        close(guest->kernel_fd);
    if (guest->initramfs_fd >= 0)
        close(guest->initramfs_fd);
    g_free(guest->stamp);
    g_free(guest);
}
