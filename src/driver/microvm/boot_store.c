#include "driver/microvm/boot_store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/boot_build.h"
#include "driver/microvm/manifest.h"
#include "driver/microvm/memory.h"
#include "os/cleanup.h"

#define MAX_MANIFEST_BYTES 65536

static void close_files(struct sp_boot_image *image)
{
    g_clear_pointer(&image->ram, sp_ram_unref);
    if (image->state_fd >= 0)
        close(image->state_fd);
    image->state_fd = -1;
}

void sp_boot_image_unref(struct sp_boot_image *image)
{
    if (!image || !g_atomic_ref_count_dec(&image->refs))
        return;
    close_files(image);
    sp_vm_host_unref(image->host);
    sp_guest_unref(image->guest);
    g_free(image->disk_path);
    g_free(image->path);
    g_free(image);
}

/* An image that is not open yet: path and key of what this shape needs. */
static struct sp_boot_image *describe(struct sp_microvm *vm, const char *template_dir,
                                      const struct sp_shape *shape, GError **error)
{
    struct sp_vm_host *host = sp_microvm_host(vm, error);
    struct sp_guest *guest = host ? sp_microvm_guest(vm, error) : NULL;
    if (!guest) {
        sp_vm_host_unref(host);
        return NULL;
    }
    struct sp_boot_image *image = g_new0(struct sp_boot_image, 1);
    g_atomic_ref_count_init(&image->refs);
    image->host = host;
    image->guest = guest;
    image->state_fd = -1;
    image->identity = (struct sp_boot_identity){
        .qemu_version = host->qemu_version,
        .accel = host->accel,
        .host_cpu = host->host_cpu,
        .tsc_mhz = (host->tsc_khz + 500) / 1000,
        .kernel_sha256 = guest->kernel_sha256,
        .initramfs_sha256 = guest->initramfs_sha256,
        .memory_mb = shape->memory_mb,
        .vcpus = sp_boot_vcpus(shape),
        .disk_mb = shape->disk_mb,
    };
    sp_boot_key(&image->identity, image->key);
    image->path = sp_boot_image_path(template_dir, image->key);
    image->disk_path = g_build_filename(image->path, "disk", NULL);
    return image;
}

static bool build(struct sp_microvm *vm, const char *template_dir,
                  const struct sp_boot_image *image, sp_progress_fn progress, void *user,
                  GError **error)
{
    struct sp_boot_build build = {
        .template_dir = template_dir,
        .identity = &image->identity,
        .host = image->host,
        .guest = image->guest,
        .progress = progress,
        .user = user,
    };
    return sp_boot_image_build(vm, &build, error);
}

bool sp_boot_store_prepare(struct sp_microvm *vm, const char *template_dir,
                           const struct sp_shape *shape, sp_progress_fn progress, void *user,
                           GError **error)
{
    struct sp_boot_image *image = describe(vm, template_dir, shape, error);
    bool ok = image && build(vm, template_dir, image, progress, user, error);
    sp_boot_image_unref(image);
    return ok;
}

/* --- opening: every failure here means that the image is damaged --- */

static int open_in(const struct sp_boot_image *image, const char *name, GError **error)
{
    g_autofree char *path = g_build_filename(image->path, name, NULL);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
    return fd;
}

/* Reads a file, into `to` unless that is -1, and compares it with the manifest. */
static bool verify(const struct sp_boot_image *image, const char *name,
                   const struct sp_boot_file *wanted, int to, GError **error)
{
    struct sp_memory_copied copied;
    SP_CLEANUP(sp_close_fdp) int fd = open_in(image, name, error);
    if (fd < 0 || !sp_memory_copy(fd, to, &copied, error))
        return false;
    if (copied.size_bytes == wanted->size_bytes && strcmp(copied.sha256, wanted->sha256) == 0)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "boot image %s: %s is damaged", image->key,
                name);
    return false;
}

static int load(const struct sp_boot_image *image, const char *name,
                const struct sp_boot_file *wanted, GError **error)
{
    int fd = sp_memory_new("space-vm", 0, error);
    if (fd < 0)
        return -1;
    if (verify(image, name, wanted, fd, error) && sp_memory_seal(fd, error))
        return fd;
    close(fd);
    return -1;
}

struct memory {
    const struct sp_boot_image *image;
    const struct sp_boot_file *wanted;
};

static bool fill_memory(int fd, void *user, GError **error)
{
    const struct memory *memory = user;
    return verify(memory->image, "memory", memory->wanted, fd, error);
}

static bool load_memory(struct sp_microvm *vm, struct sp_boot_image *image,
                        const struct sp_boot_file *wanted, GError **error)
{
    struct memory memory = {image, wanted};
    g_autofree char *key = sp_ram_key_of_file(wanted->sha256);
    g_strlcpy(image->memory_sha256, wanted->sha256, SP_HASH_HEX);
    image->memory_data_bytes = wanted->data_bytes;
    image->ram = sp_ram_get(vm, key, wanted->size_bytes, fill_memory, &memory, error);
    return image->ram != NULL;
}

static bool read_manifest(const struct sp_boot_image *image, struct sp_boot_manifest *ret,
                          GError **error)
{
    g_autofree char *path = g_build_filename(image->path, "manifest.json", NULL);
    g_autofree char *text = NULL;
    gsize len;
    if (!g_file_get_contents(path, &text, &len, error))
        return false;
    if (len > MAX_MANIFEST_BYTES) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s is too long", path);
        return false;
    }
    return sp_boot_manifest_parse(text, len, ret, error);
}

static bool open_image(struct sp_microvm *vm, struct sp_boot_image *image, GError **error)
{
    struct sp_boot_manifest manifest;
    close_files(image);
    if (!read_manifest(image, &manifest, error))
        return false;
    g_autofree char *identity = sp_boot_identity_text(&image->identity);
    bool ok = strcmp(identity, manifest.identity) == 0;
    if (!ok)
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "boot image %s is of something else",
                    image->key);
    ok = ok && verify(image, "disk", &manifest.disk, -1, error);
    if (ok) {
        image->state_fd = load(image, "state", &manifest.state, error);
        ok = image->state_fd >= 0;
    }
    ok = ok && load_memory(vm, image, &manifest.memory, error);
    sp_boot_manifest_clear(&manifest);
    return ok;
}

/* --- the table --- */

static gboolean is_gone(gpointer path, gpointer image, gpointer user)
{
    return !sp_boot_image_exists(path);
}

static gboolean is_below(gpointer path, gpointer image, gpointer prefix)
{
    return g_str_has_prefix(path, prefix);
}

void sp_boot_store_forget(struct sp_microvm *vm, const char *template_dir)
{
    g_autofree char *prefix = g_strconcat(template_dir, "/", NULL);
    g_mutex_lock(&vm->images_lock);
    g_hash_table_foreach_remove(vm->images, is_below, prefix);
    g_mutex_unlock(&vm->images_lock);
}

/* The open image of this path, or NULL. */
static struct sp_boot_image *find(struct sp_microvm *vm, const char *path)
{
    g_mutex_lock(&vm->images_lock);
    g_hash_table_foreach_remove(vm->images, is_gone, NULL);
    struct sp_boot_image *image = g_hash_table_lookup(vm->images, path);
    if (image)
        g_atomic_ref_count_inc(&image->refs);
    g_mutex_unlock(&vm->images_lock);
    return image;
}

/* Two threads may have opened the same image; the first one in wins. Takes the reference. */
static struct sp_boot_image *enter(struct sp_microvm *vm, struct sp_boot_image *image)
{
    g_mutex_lock(&vm->images_lock);
    struct sp_boot_image *known = g_hash_table_lookup(vm->images, image->path);
    if (!known) {
        known = image;
        g_atomic_ref_count_inc(&known->refs);
        g_hash_table_insert(vm->images, g_strdup(known->path), known);
    }
    if (known != image) {
        g_atomic_ref_count_inc(&known->refs);
        sp_boot_image_unref(image);
    }
    g_mutex_unlock(&vm->images_lock);
    return known;
}

struct sp_boot_image *sp_boot_store_get(struct sp_microvm *vm, const char *template_dir,
                                        const struct sp_shape *shape, GError **error)
{
    struct sp_boot_image *image = describe(vm, template_dir, shape, error);
    if (!image)
        return NULL;
    struct sp_boot_image *known = find(vm, image->path);
    if (known) {
        sp_boot_image_unref(image);
        return known;
    }
    g_autoptr(GError) damage = NULL;
    bool ok = build(vm, template_dir, image, NULL, NULL, error);
    if (ok && !open_image(vm, image, &damage)) {
        ok = sp_boot_image_remove(image->path, error) &&
             build(vm, template_dir, image, NULL, NULL, error) && open_image(vm, image, error);
    }
    if (!ok) {
        sp_boot_image_unref(image);
        return NULL;
    }
    return enter(vm, image);
}
