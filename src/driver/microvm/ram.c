#include "driver/microvm/ram.h"

#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/memory.h"

char *sp_ram_key_of_file(const char *sha256)
{
    return g_strconcat("file:", sha256, NULL);
}

char *sp_ram_key_empty(int64_t size_bytes)
{
    return g_strdup_printf("empty:%" G_GINT64_FORMAT, size_bytes);
}

struct sp_ram *sp_ram_ref(struct sp_ram *ram)
{
    g_mutex_lock(&ram->vm->rams_lock);
    ram->refs++;
    g_mutex_unlock(&ram->vm->rams_lock);
    return ram;
}

void sp_ram_unref(struct sp_ram *ram)
{
    if (!ram)
        return;
    struct sp_microvm *vm = ram->vm;
    g_mutex_lock(&vm->rams_lock);
    bool last = --ram->refs == 0;
    if (last)
        g_hash_table_remove(vm->rams, ram->key);
    g_mutex_unlock(&vm->rams_lock);
    if (!last)
        return;
    if (ram->fd >= 0)
        close(ram->fd);
    g_mutex_clear(&ram->lock);
    g_free(ram->key);
    g_free(ram);
}

/* With a reference; made if need be. */
static struct sp_ram *look_up(struct sp_microvm *vm, const char *key)
{
    g_mutex_lock(&vm->rams_lock);
    struct sp_ram *ram = g_hash_table_lookup(vm->rams, key);
    if (!ram) {
        ram = g_new0(struct sp_ram, 1);
        ram->vm = vm;
        ram->key = g_strdup(key);
        ram->fd = -1;
        g_mutex_init(&ram->lock);
        g_hash_table_insert(vm->rams, ram->key, ram);
    }
    ram->refs++;
    g_mutex_unlock(&vm->rams_lock);
    return ram;
}

static int make(int64_t size_bytes, sp_ram_fill_fn fill, void *user, GError **error)
{
    int fd = sp_memory_new("space-vm", size_bytes, error);
    if (fd < 0)
        return -1;
    if ((!fill || fill(fd, user, error)) && sp_memory_seal(fd, error))
        return fd;
    close(fd);
    return -1;
}

struct sp_ram *sp_ram_get(struct sp_microvm *vm, const char *key, int64_t size_bytes,
                          sp_ram_fill_fn fill, void *user, GError **error)
{
    struct sp_ram *ram = look_up(vm, key);
    g_mutex_lock(&ram->lock);
    if (ram->fd < 0)
        ram->fd = make(size_bytes, fill, user, error);
    bool ok = ram->fd >= 0;
    g_mutex_unlock(&ram->lock);
    if (ok)
        return ram;
    sp_ram_unref(ram);
    return NULL;
}

struct sp_ram *sp_ram_put(struct sp_microvm *vm, const char *key, int fd, GError **error)
{
    if (!sp_memory_seal(fd, error)) {
        close(fd);
        return NULL;
    }
    struct sp_ram *ram = look_up(vm, key);
    g_mutex_lock(&ram->lock);
    if (ram->fd < 0)
        ram->fd = fd;
    else
        close(fd);
    g_mutex_unlock(&ram->lock);
    return ram;
}
