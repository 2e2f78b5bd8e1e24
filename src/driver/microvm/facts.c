#include "driver/microvm/facts.h"

#include <string.h>

#define GROUP "microvm"

void sp_vm_facts_store(const struct sp_vm_facts *f, struct sp_record *record)
{
    if (!record->extra)
        record->extra = g_key_file_new();
    GKeyFile *file = record->extra;
    g_key_file_set_string(file, GROUP, "name", f->name);
    g_key_file_set_string(file, GROUP, "accel", sp_accel_name(f->accel));
    g_key_file_set_double(file, GROUP, "cpus", f->shape.cpus);
    g_key_file_set_int64(file, GROUP, "memory_mb", f->shape.memory_mb);
    g_key_file_set_int64(file, GROUP, "disk_mb", f->shape.disk_mb);
    g_key_file_set_int64(file, GROUP, "pids", f->shape.pids);
    g_key_file_set_integer(file, GROUP, "vcpus", (int)f->vcpus);
    g_key_file_set_string(file, GROUP, "kernel", f->kernel_sha256);
    g_key_file_set_string(file, GROUP, "initramfs", f->initramfs_sha256);
    g_key_file_set_string(file, GROUP, "base", f->base_sha256);
    g_key_file_set_int64(file, GROUP, "base_data_bytes", f->base_data_bytes);
    g_key_file_set_boolean(file, GROUP, "delta", f->has_delta);
}

static void load_hash(GKeyFile *file, const char *key, char ret[SP_HASH_HEX])
{
    g_autofree char *text = g_key_file_get_string(file, GROUP, key, NULL);
    g_strlcpy(ret, text ? text : "", SP_HASH_HEX);
}

/* It becomes part of paths. */
static bool is_plain(const char *name)
{
    return *name && *name != '.' && !strchr(name, '/');
}

void sp_vm_facts_load(const struct sp_record *record, struct sp_vm_facts *ret)
{
    GKeyFile *file = record->extra;
    g_autofree char *accel = g_key_file_get_string(file, GROUP, "accel", NULL);
    *ret = (struct sp_vm_facts){
        .name = g_key_file_get_string(file, GROUP, "name", NULL),
        .accel = g_strcmp0(accel, "kvm") == 0 ? SP_ACCEL_KVM : SP_ACCEL_TCG,
        .shape =
            {
                .cpus = g_key_file_get_double(file, GROUP, "cpus", NULL),
                .memory_mb = g_key_file_get_int64(file, GROUP, "memory_mb", NULL),
                .disk_mb = g_key_file_get_int64(file, GROUP, "disk_mb", NULL),
                .pids = g_key_file_get_int64(file, GROUP, "pids", NULL),
            },
        .vcpus = (unsigned)g_key_file_get_integer(file, GROUP, "vcpus", NULL),
        .base_data_bytes = g_key_file_get_int64(file, GROUP, "base_data_bytes", NULL),
        .has_delta = g_key_file_get_boolean(file, GROUP, "delta", NULL),
    };
    if (!ret->name || !is_plain(ret->name)) {
        g_free(ret->name);
        ret->name = g_strdup(record->id);
    }
    load_hash(file, "kernel", ret->kernel_sha256);
    load_hash(file, "initramfs", ret->initramfs_sha256);
    load_hash(file, "base", ret->base_sha256);
}

void sp_vm_facts_clear(struct sp_vm_facts *facts)
{
    g_clear_pointer(&facts->name, g_free);
}
