/* Pool members, VMMs that were started ahead, and workers killed on the way; real VMs, as
 * microvm_live. */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "disk/saved.h"
#include "disk/tree.h"
#include "driver/record.h"
#include "microvm_saved_steps.h"
#include "os/pidfd.h"

/* --- pools --- */

static void test_claim(void)
{
    if (saved_skip())
        return;
    struct world w;
    struct clone c;
    g_autoptr(GError) error = NULL;
    world_open(&w);
    const struct sp_driver_ops *ops = w.driver->ops;
    clone_plan(&w, &c, NULL);
    c.name = "pool-member-1";
    g_assert_nonnull(clone_try(&w, &c, 3, NULL, NULL, &error));
    g_assert_true(ops->pause(c.instance, NULL));
    struct clone taken;
    clone_plan(&w, &taken, NULL);
    ops->claim(c.instance, taken.id, taken.run_dir, "host", &error);
    g_assert_no_error(error);
    taken.instance = c.instance;
    g_assert_false(g_file_test(c.run_dir, G_FILE_TEST_EXISTS));
    g_assert_true(ops->resume(taken.instance, NULL));
    struct sp_boot_talk *talk = saved_identify(&w, &taken);
    saved_start_counter(talk);
    saved_look(talk);
    g_assert_cmpuint(ops->slot(taken.instance), ==, 3);
    saved_adopt(&w, &taken, false);
    saved_must(&w, &taken, talk, SNAPSHOT, true, false);
    struct sp_record record;
    g_assert_true(sp_record_load(taken.run_dir, &record, NULL));
    g_assert_cmpstr(record.id, ==, taken.id);
    g_assert_cmpstr(record.cgroup, ==, "pool-member-1");
    sp_record_clear(&record);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &taken);
    g_free(c.run_dir);
    saved_remove(&w, SNAPSHOT);
    saved_end(&w);
}

static void remember(void *user, const char *step, int64_t us)
{
    if (strcmp(step, "qemu_start") == 0)
        *(int64_t *)user = us;
}

/* Makes one and says whether it took a VMM that was started ahead. */
static bool took(struct world *w, struct clone *c, unsigned slot)
{
    g_autoptr(GError) error = NULL;
    int64_t start_us = -1;
    clone_try(w, c, slot, remember, &start_us, &error);
    g_assert_no_error(error);
    return start_us < 500;
}

static void test_prestart(void)
{
    if (saved_skip())
        return;
    struct world w;
    struct clone c;
    char *dirs[4];
    g_autofree char *saved_dir = NULL;
    world_open(&w);
    saved_dir = sp_saved_path(w.volume, SNAPSHOT);
    const struct sp_driver_ops *ops = w.driver->ops;
    const char *digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    saved_prestart(&w, "pool-1", 11, &dirs[0]);
    saved_prestart(&w, "pool-2", 12, &dirs[1]);
    saved_prestart(&w, "pool-3", 13, &dirs[2]);
    saved_prestart(&w, "pool-4", 14, &dirs[3]);
    g_assert_cmpuint(ops->prestarted(w.driver, digest, &test_shape), ==, 4);

    /* A plain create. */
    clone_plan(&w, &c, NULL);
    g_assert_true(took(&w, &c, 1));
    g_assert_cmpuint(ops->slot(c.instance), ==, 11);
    g_assert_false(g_file_test(dirs[0], G_FILE_TEST_EXISTS));
    struct sp_boot_talk *talk = saved_identify(&w, &c);
    saved_start_counter(talk);
    g_autofree char *files = saved_ask(talk, "write", NULL, NULL);
    struct counter before = saved_look(talk);
    saved_must(&w, &c, talk, SNAPSHOT, true, true);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);

    /* The next one has died: it is passed over and removed. */
    struct sp_record record;
    g_assert_true(sp_record_load(dirs[1], &record, NULL));
    int pidfd = sp_record_open_process(&record, NULL);
    g_assert_true(sp_pidfd_kill(pidfd, 5000, NULL));
    close(pidfd);
    sp_record_clear(&record);
    g_assert_cmpuint(ops->prestarted(w.driver, digest, &test_shape), ==, 2);
    clone_plan(&w, &c, NULL);
    c.saved_dir = saved_dir;
    g_assert_true(took(&w, &c, 1));
    g_assert_cmpuint(ops->slot(c.instance), ==, 13);
    g_assert_false(g_file_test(dirs[1], G_FILE_TEST_EXISTS));
    talk = saved_identify(&w, &c);
    g_assert_cmpint(saved_look(talk).pid, ==, before.pid);
    g_autofree char *same = saved_ask(talk, "check", NULL, NULL);
    g_assert_cmpstr(same, ==, files);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);

    /* One is taken back: nobody else gets it, and destroy() removes it. */
    char *back;
    saved_prestart(&w, "pool-5", 15, &back);
    g_assert_cmpuint(ops->prestarted(w.driver, digest, &test_shape), ==, 2);
    g_assert_true(ops->end_prestarted(w.driver, back));
    g_assert_false(ops->end_prestarted(w.driver, back));
    g_assert_false(ops->end_prestarted(w.driver, dirs[0]));
    g_assert_true(sp_record_load(back, &record, NULL));
    pidfd = sp_record_open_process(&record, NULL);
    g_assert_cmpint(pidfd, >=, 0);
    g_autoptr(GError) error = NULL;
    g_assert_true(ops->destroy(w.driver, back, &error));
    g_assert_true(sp_pidfd_wait(pidfd, 0));
    close(pidfd);
    sp_record_clear(&record);
    g_free(back);

    /* The last one ends with the driver. */
    g_assert_cmpuint(ops->prestarted(w.driver, digest, &test_shape), ==, 1);
    w.driver->ops->driver_free(w.driver);
    w.driver = sp_driver_microvm_new(&w.env, NULL);
    g_assert_false(g_file_test(dirs[3], G_FILE_TEST_EXISTS));
    g_assert_cmpuint(ops->prestarted(w.driver, digest, &test_shape), ==, 0);
    clone_plan(&w, &c, NULL);
    c.saved_dir = saved_dir;
    g_assert_false(took(&w, &c, 1));
    clone_destroy(&w, &c);
    for (unsigned i = 0; i < G_N_ELEMENTS(dirs); i++)
        g_free(dirs[i]);
    saved_remove(&w, SNAPSHOT);
    saved_end(&w);
}

/* --- killed workers --- */

static void tell(void *user, const char *step, int64_t us)
{
    g_assert_cmpint(write(STDOUT_FILENO, ".", 1), ==, 1);
}

static void save_slowly(struct world *w, struct clone *c)
{
    const struct sp_driver_ops *ops = w->driver->ops;
    struct sp_save_spec spec = {.saved_name = SNAPSHOT, .memory = true, .durable = true};
    struct sp_saved_result result;
    c->instance = ops->adopt(w->driver, c->run_dir, NULL, NULL);
    struct sp_saving *saving = ops->save_begin(c->instance, &spec, NULL);
    tell(NULL, NULL, 0);
    g_assert_true(ops->pause(c->instance, NULL));
    tell(NULL, NULL, 0);
    g_assert_true(ops->save_capture(saving, NULL));
    tell(NULL, NULL, 0);
    ops->save_finish(saving, &result, NULL, NULL, NULL);
    tell(NULL, NULL, 0);
}

/* What the tests below kill: it does something and writes a byte after each step. */
static int victim(const char *state_dir, const char *id, const char *what)
{
    struct world w;
    struct clone c;
    char *run_dir;
    world_join(&w, state_dir);
    clone_plan(&w, &c, id);
    if (strcmp(what, "save") == 0) {
        save_slowly(&w, &c);
    } else {
        if (strcmp(what, "prestarted") == 0)
            saved_prestart(&w, "pool-killed", 9, &run_dir);
        c.saved_dir = sp_saved_path(w.volume, SNAPSHOT);
        c.use = strcmp(what, "copy") == 0 ? SP_SAVED_COPY : SP_SAVED_WAKE;
        clone_try(&w, &c, 5, tell, NULL, NULL);
    }
    pause();
    return 1;
}

/* Kills a worker delay_us after it has done so many steps. */
static void kill_victim(struct world *w, const char *id, const char *what, unsigned steps,
                        unsigned delay_us)
{
    const char *argv[] = {"/proc/self/exe", "victim", w->state_dir, id, what, NULL};
    g_autoptr(GError) error = NULL;
    GPid pid;
    int out;
    g_assert_true(g_spawn_async_with_pipes(NULL, (char **)argv, NULL, G_SPAWN_DO_NOT_REAP_CHILD,
                                           NULL, NULL, &pid, NULL, &out, NULL, &error));
    for (unsigned done = 0; done < steps; done++) {
        struct pollfd p = {.fd = out, .events = POLLIN};
        char byte;
        g_assert_cmpint(poll(&p, 1, 20000), ==, 1);
        g_assert_cmpint(read(out, &byte, 1), ==, 1);
    }
    g_usleep(delay_us);
    kill(pid, SIGKILL);
    g_assert_cmpint(waitpid(pid, NULL, 0), ==, pid);
    close(out);
}

/* Whatever a killed worker was at, the VM goes on, and a form is there whole or not at all. */
static void test_killed_saving(void)
{
    if (saved_skip())
        return;
    struct world w;
    struct clone c;
    g_autoptr(GError) error = NULL;
    unsigned whole = 0;
    world_open(&w);
    const struct sp_driver_ops *ops = w.driver->ops;
    struct sp_boot_talk *talk = saved_origin(&w, &c, 1, NULL);
    struct counter before = saved_look(talk);
    sp_boot_talk_free(talk);
    for (unsigned i = 0; i < 15; i++) {
        kill_victim(&w, c.id, "save", i / 3, i % 3 * 15000);
        sp_saved_clean(w.volume);
        g_assert_cmpuint(saved_entries(&w, "tmp"), ==, 0);
        bool there = sp_saved_exists(w.volume, SNAPSHOT);
        g_assert_cmpuint(saved_entries(&w, "saved"), ==, there);
        whole += there;
        if (there) {
            struct clone copy;
            saved_make(&w, &copy, SNAPSHOT, SP_SAVED_COPY, 2);
            clone_destroy(&w, &copy);
            saved_remove(&w, SNAPSHOT);
        }
        ops->instance_free(c.instance);
        c.instance = ops->adopt(w.driver, c.run_dir, NULL, &error);
        g_assert_no_error(error);
        g_assert_true(ops->resume(c.instance, NULL));
        talk = clone_talk(&w, &c);
        struct counter after = saved_look(talk);
        g_assert_cmpint(after.pid, ==, before.pid);
        sp_boot_talk_free(talk);
    }
    g_test_message("%u forms were whole", whole);
    g_assert_cmpuint(whole, >, 0);
    clone_destroy(&w, &c);
    saved_end(&w);
}

static void remove_pool_dir(struct world *w)
{
    g_autoptr(GDir) dir = g_dir_open(w->state_dir, 0, NULL);
    for (const char *name; (name = g_dir_read_name(dir));) {
        g_autofree char *path = g_build_filename(w->state_dir, name, NULL);
        if (g_str_has_prefix(name, "sbx_"))
            g_assert_true(w->driver->ops->destroy(w->driver, path, NULL));
    }
}

/* A wake or a copy that is killed at any step is removed by what its records say. */
static void test_killed_making(void)
{
    if (saved_skip())
        return;
    static const char *const ways[] = {"wake", "copy", "prestarted"};
    struct world w;
    struct clone c;
    world_open(&w);
    struct sp_boot_talk *talk = saved_origin(&w, &c, 1, NULL);
    saved_must(&w, &c, talk, SNAPSHOT, true, true);
    sp_boot_talk_free(talk);
    clone_destroy(&w, &c);
    for (unsigned i = 0; i < 30; i++) {
        char id[SP_ID_MAX];
        sp_id_new("sbx", id);
        kill_victim(&w, id, ways[i / 10], 1 + i % 10, i % 2 * 2000);
        remove_pool_dir(&w);
        g_assert_cmpuint(saved_entries(&w, "layers"), ==, 0);
        g_assert_true(sp_saved_exists(w.volume, SNAPSHOT));
    }
    saved_remove(&w, SNAPSHOT);
    saved_end(&w);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "launcher") == 0)
        return sp_launcher_main(SP_LAUNCHER_FD);
    if (argc == 5 && strcmp(argv[1], "victim") == 0)
        return victim(argv[2], argv[3], argv[4]);
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/microvm/saved/claim", test_claim);
    g_test_add_func("/microvm/saved/prestart", test_prestart);
    g_test_add_func("/microvm/saved/killed_saving", test_killed_saving);
    g_test_add_func("/microvm/saved/killed_making", test_killed_making);
    return g_test_run();
}
