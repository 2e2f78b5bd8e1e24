/*
 * Whether CRIU works here is found out by doing it: a small sandbox, made like all others, is
 * saved, ended, restored and spoken to. Versions that are too old for a kernel fail in many ways,
 * one of them being that they never end (docs/container.md), so all of this has a time limit.
 *
 * That it works is kept in <state>/criu-trial.ini for this boot and this very program.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/time.h"
#include "disk/layer.h"
#include "disk/program.h"
#include "disk/saved.h"
#include "disk/tree.h"
#include "driver/container/criu.h"
#include "os/file_lock.h"
#include "wire/agent_frame.h"
#include "wire/agent_msg.h"

#define NAME "criu-trial" /* of its cgroup, layer, form and folder */
#define VERDICT "criu-trial.ini"
#define GROUP "verdict"
#define DIGEST "00000000000000000000000000000000000000000000000000000000c21c21c2"
#define LOCK_MS 20000
#define MKFS_MS 5000
#define STEP_MS 6000 /* of the dump, of the restore */
#define ANSWER_MS 2000
#define WHAT_TO_DO                                                                                 \
    "; without it memory: false saves the disk, and the microvm tier saves memory as well"

struct trial {
    struct sp_container_driver *driver;
    char *dir, *run_dir, *template_dir;
    struct sp_instance *instance;
    bool saved;
};

static void clear(struct trial *t)
{
    if (t->instance)
        sp_container_instance_free(t->instance);
    g_free(t->dir);
    g_free(t->run_dir);
    g_free(t->template_dir);
}

/* Also of a worker that was killed in the middle. */
static void remove_all(struct trial *t)
{
    const struct sp_driver_env *env = &t->driver->env;
    if (t->instance)
        sp_container_instance_free(t->instance);
    t->instance = NULL;
    sp_container_destroy(&t->driver->base, t->run_dir, NULL);
    sp_saved_remove(env->volume, NAME, NULL);
    sp_images_unmount(t->driver->images, "sha256:" DIGEST, NULL);
    sp_tree_remove(t->dir);
}

/* A template with nothing but the places where things are mounted. */
static bool make_template(struct trial *t, GError **error)
{
    static const char *const folders[] = {"proc", "dev", "run", "tmp", "etc"};
    g_autofree char *tree = g_build_filename(t->dir, "tree", NULL);
    g_autofree char *image = g_build_filename(t->template_dir, "image.erofs", NULL);
    bool ok = g_mkdir_with_parents(t->template_dir, 0700) == 0 &&
              g_mkdir_with_parents(t->run_dir, 0700) == 0;
    for (size_t i = 0; i < G_N_ELEMENTS(folders); i++) {
        g_autofree char *path = g_build_filename(tree, folders[i], NULL);
        ok = ok && g_mkdir_with_parents(path, 0755) == 0;
    }
    if (!ok) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", t->dir);
        return false;
    }
    const char *const argv[] = {"mkfs.erofs", "--quiet", image, tree, NULL};
    const struct sp_program mkfs = {.argv = argv, .timeout_ms = MKFS_MS};
    return sp_program_run(&mkfs, error);
}

static bool start(struct trial *t, const char *saved_dir, GError **error)
{
    char id[SP_ID_MAX];
    sp_id_new("sbx", id);
    const struct sp_driver_spec spec = {
        .id = id,
        .name = NAME,
        .run_dir = t->run_dir,
        .template_dir = t->template_dir,
        .template_digest = "sha256:" DIGEST,
        .slot = SP_SLOTS - 1,
        .hostname = NAME,
        .shape = {.cpus = 1, .memory_mb = 128, .disk_mb = 16, .pids = 64},
        .saved_dir = saved_dir,
        .saved_use = SP_SAVED_WAKE,
    };
    t->instance = sp_container_create(&t->driver->base, &spec, NULL, NULL, error);
    return t->instance != NULL;
}

static bool save(struct trial *t, GError **error)
{
    const struct sp_save_spec spec = {.saved_name = NAME, .memory = true, .durable = true};
    struct sp_saved_result result;
    struct sp_saving *saving = sp_container_save_begin(t->instance, &spec, error);
    bool ok = saving && sp_container_pause(t->instance, error) &&
              sp_container_save_capture(saving, error) &&
              sp_container_save_finish(saving, &result, NULL, NULL, error);
    sp_container_save_free(saving);
    return ok;
}

/* A HELLO is answered: the agent runs, and its socket and event loop are whole. */
static bool is_answered(struct trial *t, GError **error)
{
    SP_CLEANUP(sp_close_fdp) int fd = sp_container_connect(t->instance, error);
    if (fd < 0)
        return false;
    uint8_t frame[256];
    struct sp_pack p;
    const struct sp_msg_hello hello = {.version_min = SP_AGENT_VERSION,
                                       .version_max = SP_AGENT_VERSION,
                                       .max_event_data = 4096,
                                       .sandbox_id = sp_span_of(NAME)};
    sp_pack_init(&p, frame + SP_FRAME_HEADER_BYTES, sizeof frame - SP_FRAME_HEADER_BYTES);
    sp_msg_hello_encode(&p, &hello);
    const struct sp_frame_header header = {SP_FRAME_HELLO, (uint32_t)p.len, 1};
    sp_frame_header_encode(&header, frame);
    ssize_t len = (ssize_t)(SP_FRAME_HEADER_BYTES + p.len);
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    if (write(fd, frame, (size_t)len) == len && poll(&poll_fd, 1, ANSWER_MS) == 1 &&
        recv(fd, frame, sizeof frame, MSG_DONTWAIT) > 0)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "the %s agent does not answer",
                t->saved ? "restored" : "new");
    return false;
}

static bool try_it(struct trial *t, GError **error)
{
    if (!make_template(t, error) || !start(t, NULL, error) || !is_answered(t, error) ||
        !save(t, error))
        return false;
    t->saved = true;
    sp_container_instance_free(t->instance);
    t->instance = NULL;
    g_autofree char *saved = sp_saved_path(t->driver->env.volume, NAME);
    return sp_container_destroy(&t->driver->base, t->run_dir, error) && start(t, saved, error) &&
           is_answered(t, error);
}

/* Everything that a verdict depends on. */
static char *circumstances(const struct sp_container_driver *driver, const char *criu)
{
    struct stat program = {0}, agent = {0};
    g_autofree char *boot = NULL;
    if (stat(criu, &program) < 0 || stat(driver->env.agent_path, &agent) < 0 ||
        !g_file_get_contents("/proc/sys/kernel/random/boot_id", &boot, NULL, NULL))
        return NULL;
    return g_strdup_printf("%s %s %ld %ld.%09ld %ld.%09ld", g_strchomp(boot), criu,
                           (long)program.st_size, (long)program.st_mtim.tv_sec,
                           program.st_mtim.tv_nsec, (long)agent.st_mtim.tv_sec,
                           agent.st_mtim.tv_nsec);
}

/* Found before: *ret_reason is NULL when it works. */
static bool load(const char *path, const char *key, char **ret_reason)
{
    g_autoptr(GKeyFile) file = g_key_file_new();
    if (!key || !g_key_file_load_from_file(file, path, G_KEY_FILE_NONE, NULL))
        return false;
    g_autofree char *known = g_key_file_get_string(file, GROUP, "for", NULL);
    if (!known || !g_str_equal(known, key))
        return false;
    *ret_reason = g_key_file_get_string(file, GROUP, "reason", NULL);
    return true;
}

static void store(const char *path, const char *key, const char *reason)
{
    g_autoptr(GKeyFile) file = g_key_file_new();
    if (!key)
        return;
    g_key_file_set_string(file, GROUP, "for", key);
    if (reason)
        g_key_file_set_string(file, GROUP, "reason", reason);
    g_key_file_save_to_file(file, path, NULL);
}

/* The reason why not, or NULL. */
static char *run_trial(struct sp_container_driver *driver, const char *criu)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *lock_path = g_build_filename(driver->env.state_dir, NAME ".lock", NULL);
    g_autofree char *verdict = g_build_filename(driver->env.state_dir, VERDICT, NULL);
    g_autofree char *key = circumstances(driver, criu);
    /* `space doctor` may do the same at the same time. */
    SP_CLEANUP(sp_close_fdp) int lock = sp_file_lock(lock_path, LOCK_MS, &error);
    if (lock < 0)
        return g_strdup(error->message);
    char *reason = NULL;
    if (load(verdict, key, &reason))
        return reason;
    struct trial t = {.driver = driver};
    t.dir = g_build_filename(driver->env.state_dir, NAME, NULL);
    t.run_dir = g_build_filename(t.dir, "run", NULL);
    t.template_dir = g_build_filename(t.dir, DIGEST, NULL);
    remove_all(&t);
    if (!try_it(&t, &error))
        reason = g_strdup_printf("%s was tried out and does not work on this host: %s", criu,
                                 error->message);
    remove_all(&t);
    clear(&t);
    if (!reason) /* what failed may have been too slow this time: the next worker tries again */
        store(verdict, key, NULL);
    return reason;
}

static gpointer trial_thread(gpointer argument)
{
    struct sp_container_driver *driver = argument;
    char *reason = run_trial(driver, driver->trial.candidate);
    g_mutex_lock(&driver->trial.lock);
    driver->trial.reason = reason;
    driver->trial.finished = true;
    g_cond_broadcast(&driver->trial.done);
    g_mutex_unlock(&driver->trial.lock);
    return NULL;
}

/* What can be told without a trial; NULL: nothing speaks against it. */
static char *refuse_at_once(char **ret_criu)
{
    g_autofree char *criu = sp_criu_find();
    if (!criu)
        return g_strdup("CRIU is not installed (criu 4.2 or newer in PATH, or its path in "
                        "SPACE_CRIU)");
    g_autofree char *version = sp_criu_version(criu);
    if (!version)
        return g_strdup_printf("%s does not tell its version", criu);
    if (!sp_criu_version_fits(version))
        return g_strdup_printf("%s is version %s; 4.2 or newer is needed", criu, version);
    *ret_criu = g_steal_pointer(&criu);
    return NULL;
}

void sp_criu_trial_begin(struct sp_container_driver *driver)
{
    g_mutex_lock(&driver->trial.lock);
    if (!driver->trial.begun) {
        driver->trial.begun = true;
        driver->trial.reason = refuse_at_once(&driver->trial.candidate);
        driver->trial.finished = driver->trial.reason != NULL;
        if (!driver->trial.finished)
            driver->trial.thread = g_thread_new("criu-trial", trial_thread, driver);
    }
    g_mutex_unlock(&driver->trial.lock);
}

void sp_criu_trial_end(struct sp_container_driver *driver)
{
    if (driver->trial.thread)
        g_thread_join(driver->trial.thread);
    g_free(driver->trial.candidate);
    g_free(driver->trial.reason);
    g_mutex_clear(&driver->trial.lock);
    g_cond_clear(&driver->trial.done);
}

char *sp_criu_trial_result(struct sp_container_driver *driver, int wait_ms, GError **error)
{
    sp_criu_trial_begin(driver);
    gint64 until = g_get_monotonic_time() + (gint64)wait_ms * 1000;
    char *criu = NULL;
    g_mutex_lock(&driver->trial.lock);
    bool is_trial = driver->trial.thread == g_thread_self();
    while (!is_trial && !driver->trial.finished && wait_ms > 0 &&
           g_cond_wait_until(&driver->trial.done, &driver->trial.lock, until))
        ;
    if (is_trial || (driver->trial.finished && !driver->trial.reason))
        criu = g_strdup(driver->trial.candidate);
    else if (!driver->trial.finished)
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE,
                    "CRIU is being tried out; ask again in a few seconds");
    else
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED, "%s" WHAT_TO_DO, driver->trial.reason);
    g_mutex_unlock(&driver->trial.lock);
    return criu;
}
