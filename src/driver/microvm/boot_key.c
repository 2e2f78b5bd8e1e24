#include "driver/microvm/boot_key.h"

#include <string.h>

#include "driver/microvm/digest.h"

unsigned sp_boot_vcpus(const struct sp_shape *shape)
{
    unsigned whole = (unsigned)CLAMP(shape->cpus, 0, 64);
    return MAX(1, whole + (shape->cpus > whole && whole < 64));
}

char *sp_boot_identity_text(const struct sp_boot_identity *identity)
{
    return g_strdup_printf("format=%d\n"
                           "qemu=%s\n"
                           "accel=%s\n"
                           "cpu=%s\n"
                           "host_cpu=%s\n"
                           "tsc_mhz=%u\n"
                           "kernel=%s\n"
                           "kernel_options=%s\n"
                           "initramfs=%s\n"
                           "memory_mb=%" G_GINT64_FORMAT "\n"
                           "vcpus=%u\n"
                           "disk_mb=%" G_GINT64_FORMAT "\n",
                           SP_BOOT_FORMAT, identity->qemu_version, sp_accel_name(identity->accel),
                           sp_qemu_cpu(identity->accel), identity->host_cpu, identity->tsc_mhz,
                           identity->kernel_sha256, sp_qemu_kernel_options(identity->accel),
                           identity->initramfs_sha256, identity->memory_mb, identity->vcpus,
                           identity->disk_mb);
}

void sp_boot_key(const struct sp_boot_identity *identity, char ret_key[SP_BOOT_KEY_MAX])
{
    g_autofree char *text = sp_boot_identity_text(identity);
    char hex[SP_HASH_HEX];
    struct sp_digest *digest = sp_digest_new();
    sp_digest_add(digest, text, strlen(text));
    sp_digest_end(digest, hex);
    g_strlcpy(ret_key, hex, SP_BOOT_KEY_MAX);
}
