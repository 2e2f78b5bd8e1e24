#include "driver/microvm/copies.h"

#include <sys/stat.h>

#include "os/meminfo.h"

#define SHARE 8

struct kept {
    struct sp_ram *ram; /* a reference */
    int64_t bytes;
    uint64_t used; /* when: larger is later */
};

static void kept_free(void *data)
{
    struct kept *kept = data;
    sp_ram_unref(kept->ram);
    g_free(kept);
}

GHashTable *sp_copies_new(void)
{
    return g_hash_table_new_full(g_str_hash, g_str_equal, g_free, kept_free);
}

/* What it takes of the host's memory; holes take nothing. */
static int64_t bytes_of(const struct sp_ram *ram)
{
    struct stat st;
    return fstat(ram->fd, &st) == 0 ? (int64_t)st.st_blocks * 512 : 0;
}

/* The lock is held. *ret_oldest: the key of the one that was used longest ago, but for `not_this`;
 * borrowed. */
static int64_t look(struct sp_microvm *vm, const struct kept *not_this, const char **ret_oldest)
{
    GHashTableIter iter;
    void *key, *value;
    const struct kept *oldest = NULL;
    int64_t bytes = 0;
    *ret_oldest = NULL;
    g_hash_table_iter_init(&iter, vm->copies);
    while (g_hash_table_iter_next(&iter, &key, &value)) {
        const struct kept *kept = value;
        bytes += kept->bytes;
        if (kept == not_this || (oldest && oldest->used < kept->used))
            continue;
        oldest = kept;
        *ret_oldest = key;
    }
    return bytes;
}

void sp_copies_keep(struct sp_microvm *vm, const char *saved_dir, struct sp_ram *ram,
                    int64_t max_bytes)
{
    const char *oldest;
    g_mutex_lock(&vm->copies_lock);
    struct kept *kept = g_hash_table_lookup(vm->copies, saved_dir);
    if (!kept || kept->ram != ram) {
        kept = g_new0(struct kept, 1);
        kept->ram = sp_ram_ref(ram);
        g_hash_table_replace(vm->copies, g_strdup(saved_dir), kept);
    }
    kept->bytes = bytes_of(ram);
    kept->used = ++vm->copies_clock;
    while (look(vm, kept, &oldest) > max_bytes && oldest)
        g_hash_table_remove(vm->copies, oldest);
    g_mutex_unlock(&vm->copies_lock);
}

void sp_copies_forget(struct sp_microvm *vm, const char *saved_dir)
{
    g_mutex_lock(&vm->copies_lock);
    g_hash_table_remove(vm->copies, saved_dir);
    g_mutex_unlock(&vm->copies_lock);
}

int64_t sp_copies_budget(struct sp_microvm *vm)
{
    const char *oldest;
    g_mutex_lock(&vm->copies_lock);
    int64_t kept = look(vm, NULL, &oldest);
    g_mutex_unlock(&vm->copies_lock);
    return (sp_meminfo_available_bytes() + kept) / SHARE;
}
