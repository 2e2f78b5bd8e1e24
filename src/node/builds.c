#include "node/builds.h"

#include <string.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/json.h"
#include "base/log.h"
#include "base/time.h"
#include "disk/template.h"
#include "disk/template_build.h"
#include "node/build_log.h"
#include "node/drivers.h"
#include "node/reconcile.h"
#include "node/upstream.h"

#define BUILD_TIMEOUT_MS (60 * 60 * 1000)
#define REPORT_PAUSE_MAX_MS 5000

struct sp_builds {
    struct sp_node *node;
    GMutex lock;
    GCond changed;
    GHashTable *known; /* id → GCancellable while it runs, NULL afterwards */
    unsigned running;  /* builds, and who holds them */
    unsigned started;
    bool held;
    bool stopping;
};

struct build {
    struct sp_builds *builds;
    char *id;
    json_t *recipe;
    bool no_cache;
    GCancellable *cancellable;
    struct sp_build_log *log;
};

struct sp_builds *sp_builds_new(struct sp_node *node)
{
    struct sp_builds *builds = g_new0(struct sp_builds, 1);
    builds->node = node;
    g_mutex_init(&builds->lock);
    g_cond_init(&builds->changed);
    builds->known = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    return builds;
}

/* --- the cache: what a recipe gave the last time */
static char *cache_path(struct build *build)
{
    char hash[SP_HASH_HEX];
    char *text = json_dumps(build->recipe, JSON_COMPACT | JSON_SORT_KEYS);
    sp_secret_hash(text, hash);
    free(text);
    return g_build_filename(sp_volume_dir(build->builds->node->volume), "recipes", hash, NULL);
}

/* The digest of an earlier build of the same recipe whose template is still whole. */
static char *cached_digest(struct build *build)
{
    g_autofree char *path = cache_path(build);
    g_autofree char *digest = NULL;
    if (build->no_cache || !g_file_get_contents(path, &digest, NULL, NULL))
        return NULL;
    g_strchomp(digest);
    if (!sp_template_digest_hex(digest) ||
        !sp_template_validate(build->builds->node->volume, digest, false, NULL))
        return NULL;
    return g_steal_pointer(&digest);
}

static void remember_digest(struct build *build, const char *digest)
{
    g_autofree char *path = cache_path(build);
    g_autofree char *dir = g_path_get_dirname(path);
    /* Without it the next build is slower, no more. */
    if (g_mkdir_with_parents(dir, 0700) == 0)
        g_file_set_contents(path, digest, -1, NULL);
}

/* --- the work */
static char *build_image(struct build *build, GError **error)
{
    char *digest = cached_digest(build);
    if (digest) {
        sp_build_log_line(build->log, "the same recipe was built before: using that template");
        return digest;
    }
    struct sp_template_recipe recipe = {0};
    if (sp_template_recipe_decode(build->recipe, &recipe, error) &&
        sp_template_build(build->builds->node->volume, &recipe, BUILD_TIMEOUT_MS,
                          build->cancellable, sp_build_log_line, build->log, &digest, error))
        remember_digest(build, digest);
    sp_template_recipe_clear(&recipe);
    return digest;
}

/* Makes what each tier needs for the default shape, so that the first create is quick. A tier that
 * fails is told in the log; the template is good for the others. */
static void prepare_tiers(struct build *build, const char *template_dir)
{
    static const char *const tiers[] = {"container", "microvm"};
    const struct sp_shape shape = {.cpus = 1, .memory_mb = 512, .disk_mb = 2048, .pids = 128};
    for (size_t i = 0; i < G_N_ELEMENTS(tiers); i++) {
        g_autoptr(GError) error = NULL;
        struct sp_driver *driver = sp_drivers_get(build->builds->node->drivers, tiers[i], NULL);
        if (!driver || g_cancellable_is_cancelled(build->cancellable))
            continue;
        g_autofree char *line = g_strdup_printf("preparing the %s tier", tiers[i]);
        sp_build_log_line(build->log, line);
        if (driver->ops->prepare(driver, template_dir, &shape, sp_build_log_line, build->log,
                                 &error))
            continue;
        g_autofree char *failure =
            g_strdup_printf("the %s tier cannot be prepared: %s", tiers[i], error->message);
        sp_build_log_line(build->log, failure);
        sp_log_error("a template cannot be prepared for a tier", error, "tier", tiers[i], NULL);
    }
}

/* The last report of a successful build. */
static json_t *success(const char *digest, const char *template_dir)
{
    json_t *body = json_object();
    json_object_set_new(body, "state", json_string("succeeded"));
    json_object_set_new(body, "digest", json_string(digest));
    json_object_set_new(body, "size_bytes", json_integer(sp_template_image_bytes(template_dir)));
    g_autofree char *path = g_build_filename(template_dir, "config.json", NULL);
    g_autofree char *text = NULL;
    gsize len;
    if (g_file_get_contents(path, &text, &len, NULL)) {
        json_t *config = sp_json_parse(text, len, NULL);
        if (config)
            json_object_set_new(body, "config", config);
    }
    return body;
}

static json_t *failure(const GError *error)
{
    json_t *body = json_object(), *value = json_object();
    json_object_set_new(body, "state", json_string("failed"));
    json_object_set_new(value, "code", json_string(sp_error_name(error)));
    json_object_set_new(value, "message", sp_json_text(error->message));
    if (sp_error_field(error)) {
        g_autofree char *text =
            g_strdup_printf("%s (recipe%s)", error->message, sp_error_field(error));
        json_object_set_new(value, "message", sp_json_text(text));
    }
    json_object_set_new(body, "error", value);
    return body;
}

static bool wait_ms(struct sp_builds *builds, int64_t ms)
{
    int64_t until = sp_time_monotonic_us() + ms * 1000;
    g_mutex_lock(&builds->lock);
    while (!builds->stopping && g_cond_wait_until(&builds->changed, &builds->lock, until)) {
    }
    bool go_on = !builds->stopping;
    g_mutex_unlock(&builds->lock);
    return go_on;
}

/* Until the server has taken it, or has refused it for good. */
static void report_end(struct build *build, json_t *body)
{
    int64_t pause_ms = 100;
    for (;;) {
        g_autoptr(GError) error = NULL;
        bool cancel;
        if (sp_upstream_build(build->builds->node, build->id, body, &cancel, &error))
            return;
        int status = sp_error_http_status(error);
        if (status < 500 && status != 429 && status != 401) {
            sp_log_error("the server refused the end of a build", error, "build", build->id, NULL);
            return;
        }
        if (!wait_ms(build->builds, pause_ms))
            return;
        pause_ms = MIN(pause_ms * 2, REPORT_PAUSE_MAX_MS);
    }
}

static json_t *run(struct build *build)
{
    g_autoptr(GError) error = NULL;
    struct sp_node *node = build->builds->node;
    g_autofree char *digest = build_image(build, &error);
    if (!digest) {
        sp_log_error("template build failed", error, "build", build->id, NULL);
        return failure(error);
    }
    g_autofree char *template_dir = sp_template_dir(node->volume, digest);
    prepare_tiers(build, template_dir);
    sp_log(SP_LOG_INFO, "template is built", "build", build->id, "digest", digest, NULL);
    return success(digest, template_dir);
}

static void await_release(struct sp_builds *builds)
{
    g_mutex_lock(&builds->lock);
    while (builds->held && !builds->stopping)
        g_cond_wait(&builds->changed, &builds->lock);
    g_mutex_unlock(&builds->lock);
}

static void *build_thread(void *data)
{
    struct build *build = data;
    struct sp_builds *builds = build->builds;
    await_release(builds);
    build->log = sp_build_log_new(builds->node, build->id, build->cancellable);
    json_t *end = run(build);
    g_autofree char *rest = sp_build_log_free(build->log);
    if (*rest)
        json_object_set_new(end, "log", sp_json_text(rest));
    sp_reconciler_heartbeat(builds->node->reconciler); /* the list of templates has changed */
    /* When the worker stops, the server fails the build by the next worker's instance. */
    if (!sp_node_stopping(builds->node))
        report_end(build, end);
    json_decref(end);

    g_mutex_lock(&builds->lock);
    g_hash_table_insert(builds->known, g_strdup(build->id), NULL);
    builds->running--;
    g_cond_broadcast(&builds->changed);
    g_mutex_unlock(&builds->lock);
    g_object_unref(build->cancellable);
    json_decref(build->recipe);
    g_free(build->id);
    g_free(build);
    return NULL;
}

static void start_locked(struct sp_builds *builds, json_t *row)
{
    const char *id = json_string_value(json_object_get(row, "id"));
    json_t *recipe = json_object_get(row, "recipe");
    if (!id || !recipe || builds->stopping || g_hash_table_contains(builds->known, id))
        return;
    struct build *build = g_new0(struct build, 1);
    build->builds = builds;
    build->id = g_strdup(id);
    build->recipe = json_incref(recipe);
    build->no_cache = json_is_true(json_object_get(row, "no_cache"));
    build->cancellable = g_cancellable_new();
    g_hash_table_insert(builds->known, g_strdup(id), build->cancellable);
    builds->running++;
    builds->started++;
    g_thread_unref(g_thread_new("build", build_thread, build));
}

void sp_builds_want(struct sp_builds *builds, json_t *list)
{
    size_t i;
    json_t *row;
    g_mutex_lock(&builds->lock);
    json_array_foreach(list, i, row) start_locked(builds, row);
    g_mutex_unlock(&builds->lock);
}

unsigned sp_builds_started(struct sp_builds *builds)
{
    g_mutex_lock(&builds->lock);
    unsigned started = builds->started;
    g_mutex_unlock(&builds->lock);
    return started;
}

bool sp_builds_hold(struct sp_builds *builds, unsigned started)
{
    g_mutex_lock(&builds->lock);
    bool free_now = builds->running == 0 && builds->started == started && !builds->stopping;
    if (free_now) {
        builds->held = true;
        builds->running++;
    }
    g_mutex_unlock(&builds->lock);
    return free_now;
}

void sp_builds_release(struct sp_builds *builds)
{
    g_mutex_lock(&builds->lock);
    builds->held = false;
    builds->running--;
    g_cond_broadcast(&builds->changed);
    g_mutex_unlock(&builds->lock);
}

bool sp_builds_stop(struct sp_builds *builds, int64_t timeout_ms)
{
    GHashTableIter iter;
    void *cancellable;
    int64_t until = sp_time_monotonic_us() + timeout_ms * 1000;
    g_mutex_lock(&builds->lock);
    builds->stopping = true;
    g_hash_table_iter_init(&iter, builds->known);
    while (g_hash_table_iter_next(&iter, NULL, &cancellable)) {
        if (cancellable)
            g_cancellable_cancel(cancellable);
    }
    g_cond_broadcast(&builds->changed);
    while (builds->running > 0 && g_cond_wait_until(&builds->changed, &builds->lock, until)) {
    }
    bool done = builds->running == 0;
    g_mutex_unlock(&builds->lock);
    return done;
}

void sp_builds_free(struct sp_builds *builds)
{
    g_hash_table_destroy(builds->known);
    g_mutex_clear(&builds->lock);
    g_cond_clear(&builds->changed);
    g_free(builds);
}
