/* GET /node/v1/inventory: what the worker holds, by names; `space doctor` compares. */
#include <string.h>

#include "base/json.h"
#include "disk/saved.h"
#include "disk/volume.h"
#include "node/node_api.h"
#include "node/pool.h"
#include "node/table.h"
#include "os/cgroup.h"

static const char *const presence_names[SP_N_PRESENCES] = {
    [SP_PRESENCE_ABSENT] = "absent",       [SP_PRESENCE_PARTIAL] = "partial",
    [SP_PRESENCE_RUNNING] = "running",     [SP_PRESENCE_PAUSED] = "paused",
    [SP_PRESENCE_SUSPENDED] = "suspended", [SP_PRESENCE_ENDED] = "ended",
    [SP_PRESENCE_UNKNOWN] = "unknown",
};

static json_t *sandboxes(struct sp_node *node)
{
    json_t *list = json_array();
    g_autoptr(GPtrArray) all = sp_table_all(node->table);
    for (guint i = 0; i < all->len; i++) {
        struct sp_sandbox *sandbox = all->pdata[i];
        g_mutex_lock(&node->table->lock);
        json_t *item = json_pack("{s:s,s:s,s:b,s:i}", "id", sandbox->id, "presence",
                                 presence_names[sandbox->found.presence], "busy",
                                 (int)sandbox->busy, "slot", sandbox->slot);
        g_mutex_unlock(&node->table->lock);
        json_array_append_new(list, item);
    }
    return list;
}

/* Names in a folder; [] when there is none. */
static json_t *folder(const char *path)
{
    json_t *list = json_array();
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    const char *name;
    while (dir && (name = g_dir_read_name(dir)))
        json_array_append_new(list, sp_json_text(name));
    return list;
}

static json_t *cgroups(struct sp_node *node)
{
    struct sp_cgroups *groups =
        node->cgroup_root ? sp_cgroups_open(NULL, node->cgroup_root, NULL) : NULL;
    if (!groups)
        return json_array();
    g_auto(GStrv) names = sp_cgroups_list(groups);
    sp_cgroups_free(groups);
    return sp_json_from_strv(names);
}

void sp_node_inventory(struct sp_http_request *request, void *user)
{
    struct sp_node *node = user;
    g_autofree char *layers = g_build_filename(sp_volume_dir(node->volume), "layers", NULL);
    g_auto(GStrv) saved = sp_saved_list(node->volume);
    g_auto(GStrv) pool = sp_pool_names(node->pool);
    json_t *answer = json_object();
    json_object_set_new(answer, "sandboxes", sandboxes(node));
    json_object_set_new(answer, "run_dirs", folder(node->sandbox_root));
    json_object_set_new(answer, "layers", folder(layers));
    json_object_set_new(answer, "saved", sp_json_from_strv(saved));
    json_object_set_new(answer, "cgroups", cgroups(node));
    json_object_set_new(answer, "pool", sp_json_from_strv(pool));
    sp_http_respond_json(request, 200, answer);
}
