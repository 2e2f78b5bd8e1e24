/* The RAM that is kept for copies of saved forms, and what goes when it is too much. */
#include "driver/microvm/copies.h"

#include <unistd.h>

#include "driver/microvm/memory.h"

#define MIB (INT64_C(1) << 20)

static struct sp_microvm *new_vm(void)
{
    struct sp_microvm *vm = g_new0(struct sp_microvm, 1);
    g_mutex_init(&vm->copies_lock);
    g_mutex_init(&vm->rams_lock);
    vm->rams = g_hash_table_new(g_str_hash, g_str_equal);
    vm->copies = sp_copies_new();
    return vm;
}

static void free_vm(struct sp_microvm *vm)
{
    g_hash_table_unref(vm->copies);
    g_assert_cmpuint(g_hash_table_size(vm->rams), ==, 0);
    g_hash_table_unref(vm->rams);
    g_mutex_clear(&vm->copies_lock);
    g_mutex_clear(&vm->rams_lock);
    g_free(vm);
}

static bool fill(int fd, void *user, GError **error)
{
    static const uint8_t page[4096] = {1};
    int64_t bytes = *(const int64_t *)user;
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof page)
        if (!sp_memory_write(fd, page, sizeof page, at, error))
            return false;
    return true;
}

/* Of 64 MiB, of which so much is not a hole; kept, and used by nobody else. */
static void keep(struct sp_microvm *vm, const char *dir, int64_t bytes, int64_t max_bytes)
{
    struct sp_ram *ram = sp_ram_get(vm, dir, 64 * MIB, fill, &bytes, NULL);
    g_assert_nonnull(ram);
    sp_copies_keep(vm, dir, ram, max_bytes);
    sp_ram_unref(ram);
}

static bool is_kept(struct sp_microvm *vm, const char *dir)
{
    return g_hash_table_contains(vm->rams, dir);
}

static void test_oldest_goes(void)
{
    struct sp_microvm *vm = new_vm();
    keep(vm, "a", 2 * MIB, 5 * MIB);
    keep(vm, "b", 2 * MIB, 5 * MIB);
    g_assert_true(is_kept(vm, "a") && is_kept(vm, "b"));
    keep(vm, "a", 2 * MIB, 5 * MIB); /* used again: b is the oldest */
    keep(vm, "c", 2 * MIB, 5 * MIB);
    g_assert_true(is_kept(vm, "a") && !is_kept(vm, "b") && is_kept(vm, "c"));
    sp_copies_forget(vm, "a");
    sp_copies_forget(vm, "never there");
    g_assert_false(is_kept(vm, "a"));
    free_vm(vm);
}

static void test_one_too_large(void)
{
    struct sp_microvm *vm = new_vm();
    keep(vm, "a", MIB, 5 * MIB);
    keep(vm, "large", 6 * MIB, 5 * MIB); /* its copies are about to be made */
    g_assert_true(!is_kept(vm, "a") && is_kept(vm, "large"));
    keep(vm, "b", MIB, 5 * MIB);
    g_assert_true(!is_kept(vm, "large") && is_kept(vm, "b"));
    free_vm(vm);
}

static void test_used_by_a_vm(void)
{
    struct sp_microvm *vm = new_vm();
    int64_t bytes = 4 * MIB;
    struct sp_ram *ram = sp_ram_get(vm, "a", 64 * MIB, fill, &bytes, NULL);
    sp_copies_keep(vm, "a", ram, 5 * MIB);
    keep(vm, "b", 4 * MIB, 5 * MIB);
    g_assert_true(is_kept(vm, "a")); /* by the VM, not by us */
    g_assert_cmpuint(ram->refs, ==, 1);
    sp_ram_unref(ram);
    g_assert_false(is_kept(vm, "a"));
    free_vm(vm);
}

static void test_budget(void)
{
    struct sp_microvm *vm = new_vm();
    int64_t before = sp_copies_budget(vm);
    g_assert_cmpint(before, >, MIB);
    g_assert_cmpint(before, <, (int64_t)sysconf(_SC_PHYS_PAGES) * 4096 / 4);
    free_vm(vm);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/microvm/copies/oldest_goes", test_oldest_goes);
    g_test_add_func("/microvm/copies/one_too_large", test_one_too_large);
    g_test_add_func("/microvm/copies/used_by_a_vm", test_used_by_a_vm);
    g_test_add_func("/microvm/copies/budget", test_budget);
    return g_test_run();
}
