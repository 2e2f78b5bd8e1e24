/* What the record holds beside the common group: what adopt(), saves and a claimed sandbox need. */
#include "driver/container/container.h"

#define GROUP "container"

char *sp_container_layer_name(const struct sp_record *record)
{
    char *name = record->extra ? g_key_file_get_string(record->extra, GROUP, "layer", NULL) : NULL;
    return name ? name : g_strdup(record->id); /* disk/layer.c checks it */
}

void sp_container_set_facts(struct sp_record *record, const char *layer,
                            const struct sp_shape *shape)
{
    if (!record->extra)
        record->extra = g_key_file_new();
    g_key_file_set_string(record->extra, GROUP, "layer", layer);
    g_key_file_set_double(record->extra, GROUP, "cpus", shape->cpus);
    g_key_file_set_int64(record->extra, GROUP, "memory_mb", shape->memory_mb);
    g_key_file_set_int64(record->extra, GROUP, "disk_mb", shape->disk_mb);
    g_key_file_set_int64(record->extra, GROUP, "pids", shape->pids);
}

struct sp_shape sp_container_shape(const struct sp_record *record)
{
    if (!record->extra)
        return (struct sp_shape){0};
    return (struct sp_shape){
        .cpus = g_key_file_get_double(record->extra, GROUP, "cpus", NULL),
        .memory_mb = g_key_file_get_int64(record->extra, GROUP, "memory_mb", NULL),
        .disk_mb = g_key_file_get_int64(record->extra, GROUP, "disk_mb", NULL),
        .pids = g_key_file_get_int64(record->extra, GROUP, "pids", NULL),
    };
}
