/* The pure parts of the microVM tier: command lines, plan, key, manifest, initramfs. */
#include <glib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/argv.h"
#include "driver/microvm/boot_key.h"
#include "driver/microvm/cpio.h"
#include "driver/microvm/manifest.h"
#include "driver/microvm/vmm.h"
#include "os/cleanup.h"

/* SPACE_UPDATE_GOLDEN=1 rewrites the files; look at the difference before committing it. */
static void check_golden(const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(g_getenv("SPACE_GOLDEN_DIR"), name, NULL);
    g_autofree char *wanted = NULL;
    if (g_getenv("SPACE_UPDATE_GOLDEN"))
        g_assert_true(g_file_set_contents(path, text, -1, NULL));
    g_assert_true(g_file_get_contents(path, &wanted, NULL, NULL));
    g_assert_cmpstr(text, ==, wanted);
}

static void test_argv(void)
{
    static const struct {
        const char *name;
        struct sp_qemu_config config;
    } cases[] = {
        {"microvm_tcg_boot.txt",
         {.qemu_path = "/usr/bin/qemu-system-x86_64",
          .accel = SP_ACCEL_TCG,
          .memory_mb = 512,
          .vcpus = 2,
          .boot = true,
          .shared_ram = true,
          .tsc_khz = 2596101}},
        {"microvm_tcg_restore.txt",
         {.qemu_path = "/usr/bin/qemu-system-x86_64",
          .accel = SP_ACCEL_TCG,
          .memory_mb = 512,
          .vcpus = 2,
          .tsc_khz = 2596101}},
        {"microvm_kvm_boot.txt",
         {.qemu_path = "/usr/bin/qemu-system-x86_64",
          .accel = SP_ACCEL_KVM,
          .memory_mb = 4096,
          .vcpus = 1,
          .boot = true,
          .shared_ram = true,
          .tsc_khz = 2596101}},
        {"microvm_kvm_restore.txt",
         {.qemu_path = "/usr/bin/qemu-system-x86_64",
          .accel = SP_ACCEL_KVM,
          .memory_mb = 4096,
          .vcpus = 1}},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(GStrv) argv = sp_qemu_argv(&cases[i].config);
        g_autofree char *lines = g_strjoinv("\n", argv);
        g_autofree char *text = g_strconcat(lines, "\n", NULL);
        check_golden(cases[i].name, text);
        /* Dropping the kernel's mitigations is for emulated CPUs only. */
        if (cases[i].config.accel == SP_ACCEL_KVM)
            g_assert_null(strstr(text, "mitigations"));
    }
}

static void test_plan(void)
{
    struct sp_vmm_spec spec = {
        .name = "sbx_test",
        .run_dir = "/run",
        .config = {.qemu_path = "/usr/bin/qemu-system-x86_64",
                   .accel = SP_ACCEL_KVM,
                   .memory_mb = 512,
                   .vcpus = 1},
        .kvm_node = "/state/microvm/kvm",
        .uid = 0x50010000,
        .file_limit_bytes = 1 << 30,
        .memory_fd = -1,
        .root_fd = -1,
        .rw_fd = -1,
        .kernel_fd = -1,
        .initramfs_fd = -1,
    };
    struct sp_vmm_files files = {-1, -1, -1, -1, -1};
    SP_CLEANUP(sp_plan_free_p) struct sp_plan *plan = sp_vmm_plan(&spec, &files);
    g_autofree char *text = sp_plan_dump(plan);
    check_golden("microvm_plan.txt", text);
    spec.track = true;
    SP_CLEANUP(sp_plan_free_p) struct sp_plan *tracked = sp_vmm_plan(&spec, &files);
    g_autofree char *more = sp_plan_dump(tracked);
    g_assert_null(strstr(text, "LD_PRELOAD"));
    g_assert_nonnull(strstr(more, "env LD_PRELOAD=/proc/self/fd/10\n"));
}

static const struct sp_boot_identity identity = {
    .qemu_version = "7.2.22 Debian",
    .accel = SP_ACCEL_TCG,
    .host_cpu = "",
    .tsc_mhz = 2596,
    .kernel_sha256 = "aa",
    .initramfs_sha256 = "bb",
    .memory_mb = 256,
    .vcpus = 1,
    .disk_mb = 1024,
};

static void test_key(void)
{
    char key[SP_BOOT_KEY_MAX];
    char other[SP_BOOT_KEY_MAX];
    sp_boot_key(&identity, key);
    g_assert_cmpuint(strlen(key), ==, 32);
    sp_boot_key(&identity, other);
    g_assert_cmpstr(key, ==, other);

    struct sp_boot_identity variants[] = {identity, identity, identity, identity, identity,
                                          identity, identity, identity, identity};
    variants[0].qemu_version = "7.2.23 Debian";
    variants[1].accel = SP_ACCEL_KVM;
    variants[2].host_cpu = "x";
    variants[3].tsc_mhz = 2597;
    variants[4].kernel_sha256 = "ab";
    variants[5].initramfs_sha256 = "bc";
    variants[6].memory_mb = 512;
    variants[7].vcpus = 2;
    variants[8].disk_mb = 2048;
    for (unsigned i = 0; i < G_N_ELEMENTS(variants); i++) {
        sp_boot_key(&variants[i], other);
        g_assert_cmpstr(key, !=, other);
    }
}

static void test_vcpus(void)
{
    static const struct {
        double cpus;
        unsigned vcpus;
    } cases[] = {{0.1, 1}, {1, 1}, {1.01, 2}, {2, 2}, {3.5, 4}, {64, 64}, {1000, 64}};
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct sp_shape shape = {.cpus = cases[i].cpus};
        g_assert_cmpuint(sp_boot_vcpus(&shape), ==, cases[i].vcpus);
    }
}

static void test_manifest(void)
{
    g_autofree char *text = sp_boot_identity_text(&identity);
    char key[SP_BOOT_KEY_MAX];
    char sum[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    sp_boot_key(&identity, key);
    struct sp_boot_manifest made = {
        .format = SP_BOOT_FORMAT,
        .key = key,
        .identity = text,
        .memory = {INT64_C(256) << 20, 90 << 20, sum},
        .state = {16737, 16737, sum},
        .disk = {1 << 30, 2 << 20, sum},
    };
    g_autofree char *json = sp_boot_manifest_text(&made);
    struct sp_boot_manifest read;
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_boot_manifest_parse(json, strlen(json), &read, &error));
    g_assert_cmpstr(read.key, ==, key);
    g_assert_cmpstr(read.identity, ==, text);
    g_assert_cmpint(read.memory.size_bytes, ==, INT64_C(256) << 20);
    g_assert_cmpint(read.disk.data_bytes, ==, 2 << 20);
    g_assert_cmpstr(read.state.sha256, ==, sum);
    sp_boot_manifest_clear(&read);

    for (size_t cut = 0; cut < strlen(json); cut += 7)
        g_assert_false(sp_boot_manifest_parse(json, cut, &read, NULL));
    g_autofree char *newer = g_strdup(json);
    char *format = strstr(newer, "\"format\":1");
    g_assert_nonnull(format);
    format[9] = '2';
    g_assert_false(sp_boot_manifest_parse(newer, strlen(newer), &read, NULL));
}

static unsigned hex_at(const GByteArray *archive, guint at)
{
    char text[9] = {0};
    memcpy(text, archive->data + at, 8);
    return (unsigned)g_ascii_strtoull(text, NULL, 16);
}

/* Reads it back as the kernel would (buffer-format.rst). */
static void test_cpio(void)
{
    static const struct {
        const char *name;
        unsigned mode;
        const char *content;
    } entries[] = {
        {"dev", 0040755, ""},           {"init", 0100755, "12345"},        {"modules", 0040755, ""},
        {"modules/empty", 0100644, ""}, {"modules/a.ko", 0100644, "abcd"}, {"TRAILER!!!", 0, ""}};
    g_autoptr(GByteArray) archive = g_byte_array_new();
    for (unsigned i = 0; i + 1 < G_N_ELEMENTS(entries); i++) {
        if (entries[i].mode & 0040000)
            sp_cpio_add_directory(archive, entries[i].name, 0755);
        else
            sp_cpio_add_file(archive, entries[i].name, entries[i].mode & 0777, entries[i].content,
                             strlen(entries[i].content));
    }
    sp_cpio_finish(archive);
    g_assert_cmpuint(archive->len % 512, ==, 0);

    guint at = 0;
    unsigned last_inode = G_MAXUINT;
    for (unsigned i = 0; i < G_N_ELEMENTS(entries); i++) {
        g_assert_cmpint(memcmp(archive->data + at, "070701", 6), ==, 0);
        unsigned inode = hex_at(archive, at + 6);
        unsigned mode = hex_at(archive, at + 14);
        unsigned size = hex_at(archive, at + 54);
        unsigned name_size = hex_at(archive, at + 94);
        g_assert_cmpuint(inode, !=, last_inode);
        last_inode = inode;
        g_assert_cmpuint(mode, ==, entries[i].mode);
        g_assert_cmpuint(size, ==, strlen(entries[i].content));
        g_assert_cmpstr((char *)archive->data + at + 110, ==, entries[i].name);
        g_assert_cmpuint(name_size, ==, strlen(entries[i].name) + 1);
        at = (at + 110 + name_size + 3) & ~3u;
        g_assert_cmpint(memcmp(archive->data + at, entries[i].content, size), ==, 0);
        at = (at + size + 3) & ~3u;
    }
    for (; at < archive->len; at++)
        g_assert_cmpint(archive->data[at], ==, 0);
}

static void test_overhead(void)
{
    int64_t small = sp_qemu_overhead_bytes(SP_ACCEL_KVM, 256);
    /* The RAM once more for holes of the image. */
    g_assert_cmpint(small, ==, (256 + 100) * INT64_C(1048576));
    g_assert_cmpint(sp_qemu_overhead_bytes(SP_ACCEL_TCG, 256), ==, small + 128 * INT64_C(1048576));
    g_assert_cmpint(sp_qemu_overhead_bytes(SP_ACCEL_KVM, 65536), >, INT64_C(1) << 30);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/microvm/argv", test_argv);
    g_test_add_func("/microvm/plan", test_plan);
    g_test_add_func("/microvm/key", test_key);
    g_test_add_func("/microvm/vcpus", test_vcpus);
    g_test_add_func("/microvm/manifest", test_manifest);
    g_test_add_func("/microvm/cpio", test_cpio);
    g_test_add_func("/microvm/overhead", test_overhead);
    return g_test_run();
}
