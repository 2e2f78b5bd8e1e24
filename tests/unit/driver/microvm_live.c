/*
 * The microVM tier with real VMs: root, QEMU and the guest kernel are needed; else it says so.
 *
 * SPACE_TEST_GUEST_DIR (vmlinux, modules/), SPACE_TEST_AGENT, SPACE_TEST_GUEST_PROGRAM: set by
 * meson.build. SPACE_GUEST_DIR: another place of the guest kernel.
 */
#include <fcntl.h>
#include <glib.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/program.h"
#include "driver/record.h"
#include "microvm_world.h"
#include "os/pidfd.h"

#define N_CLONES 3

static char *run(struct sp_boot_talk *talk, const char *word, int want_exit)
{
    const char *argv[] = {"/bin/tool", word, NULL};
    g_autoptr(GError) error = NULL;
    GString *output = g_string_new(NULL);
    int exit_code = -2;
    sp_boot_talk_run(talk, argv, "user", 30000, output, &exit_code, &error);
    g_assert_no_error(error);
    g_assert_cmpint(exit_code, ==, want_exit);
    return g_string_free(output, FALSE);
}

static void check_process(struct clone *c, unsigned slot)
{
    struct sp_record record;
    g_assert_true(sp_record_load(c->run_dir, &record, NULL));
    g_assert_true(record.started);
    g_autofree char *path = g_strdup_printf("/proc/%d/status", record.pid);
    g_autofree char *status = NULL;
    g_assert_true(g_file_get_contents(path, &status, NULL, NULL));
    g_autofree char *uid = g_strdup_printf(
        "Uid:\t%u\t%u\t%u\t%u\n", 0x50000000u + slot * 0x10000u, 0x50000000u + slot * 0x10000u,
        0x50000000u + slot * 0x10000u, 0x50000000u + slot * 0x10000u);
    g_assert_nonnull(strstr(status, uid));
    g_assert_nonnull(strstr(status, "CapEff:\t0000000000000000\n"));
    g_assert_nonnull(strstr(status, "CapBnd:\t0000000000000000\n"));
    g_assert_nonnull(strstr(status, "NoNewPrivs:\t1\n"));
    g_assert_nonnull(strstr(status, "Seccomp:\t2\n"));
    sp_record_clear(&record);
}

static bool skip(void)
{
    const char *why_not = world_missing();
    if (why_not)
        g_test_skip(why_not);
    return why_not != NULL;
}

/* Locked before its identity; clock and randomness of its own after it. */
static char *check_identity(struct world *w, struct clone *c)
{
    const char *argv[] = {"/bin/tool", "true", NULL};
    g_autoptr(GError) error = NULL;
    struct sp_boot_talk *talk = clone_talk(w, c);
    g_assert_false(sp_boot_talk_run(talk, argv, "user", 5000, NULL, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_clear_error(&error);
    g_assert_true(sp_boot_talk_identity(talk, 5000, &error));
    char *random = run(talk, "random", 0);
    g_assert_cmpuint(strlen(random), ==, 32);
    g_autofree char *now = run(talk, "time", 0);
    g_assert_cmpint(ABS(g_ascii_strtoll(now, NULL, 10) - sp_time_now_ms() / 1000), <=, 2);
    sp_boot_talk_free(talk);
    return random;
}

/* The disk's size is the limit; a full disk is an error inside, nothing else. */
static void check_full_disk(struct world *w, struct clone *c)
{
    const char *fill[] = {"/bin/tool", "fill", NULL};
    g_autoptr(GString) output = g_string_new(NULL);
    struct sp_boot_talk *talk = clone_talk(w, c);
    g_assert_true(sp_boot_talk_run(talk, fill, "root", 60000, output, NULL, NULL));
    g_assert_cmpint((int)g_ascii_strtoll(output->str, NULL, 10), >, 80);
    g_assert_cmpint((int)g_ascii_strtoll(output->str, NULL, 10), <, 128);
    g_autofree char *still = run(talk, "random", 0);
    g_assert_cmpuint(strlen(still), ==, 32);
    sp_boot_talk_free(talk);
}

/* A command that eats all memory is killed in the guest; the VM goes on, within its limit on the
 * host. */
static void check_memory_bomb(struct world *w, struct clone *c)
{
    struct sp_boot_talk *talk = clone_talk(w, c);
    g_autofree char *nothing = run(talk, "eat", 128 + SIGKILL);
    g_autofree char *still = run(talk, "random", 0);
    g_assert_cmpuint(strlen(still), ==, 32);
    sp_boot_talk_free(talk);
}

/* A dead VMM is proof that the sandbox does not run. */
static void check_dead(struct world *w, struct clone *c)
{
    g_autoptr(GError) error = NULL;
    struct sp_record record;
    g_assert_true(sp_record_load(c->run_dir, &record, NULL));
    int pidfd = sp_record_open_process(&record, &error);
    g_assert_no_error(error);
    g_assert_true(sp_pidfd_kill(pidfd, 5000, &error));
    close(pidfd);
    sp_record_clear(&record);
    struct pollfd p = {.fd = w->driver->ops->pidfd(c->instance), .events = POLLIN};
    g_assert_cmpint(poll(&p, 1, 5000), ==, 1);
    g_assert_null(w->driver->ops->adopt(w->driver, c->run_dir, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
}

/* A worker that comes back: a fresh driver takes over what runs, without the memory of the old one.
 */
static void check_adoption(struct world *w, struct clone *clones, char **seen)
{
    g_autoptr(GError) error = NULL;
    struct sp_driver *old = w->driver;
    w->driver = sp_driver_microvm_new(&w->env, &error);
    g_assert_no_error(error);
    for (unsigned i = 0; i < N_CLONES; i++) {
        old->ops->instance_free(clones[i].instance);
        clones[i].instance = w->driver->ops->adopt(w->driver, clones[i].run_dir, NULL, &error);
        g_assert_no_error(error);
        struct sp_boot_talk *talk = clone_talk(w, &clones[i]);
        g_autofree char *random = run(talk, "random", 0);
        g_assert_cmpstr(random, !=, seen[i]);
        sp_boot_talk_free(talk);
    }
    old->ops->driver_free(old);
}

static void test_clones(void)
{
    if (skip())
        return;
    struct world w;
    struct sp_tier_status status;
    struct clone clones[N_CLONES];
    char *seen[N_CLONES];
    world_open(&w);
    w.driver->ops->probe(w.driver, &status);
    g_test_message("tier: %s", status.detail);
    g_assert_true(status.available);
    g_free(status.detail);

    for (unsigned i = 0; i < N_CLONES; i++)
        clone_create(&w, &clones[i], i + 1, NULL, NULL);
    for (unsigned i = 0; i < N_CLONES; i++) {
        check_process(&clones[i], i + 1);
        seen[i] = check_identity(&w, &clones[i]);
        for (unsigned j = 0; j < i; j++)
            g_assert_cmpstr(seen[i], !=, seen[j]);
    }
    check_adoption(&w, clones, seen);
    check_full_disk(&w, &clones[0]);
    check_memory_bomb(&w, &clones[2]);
    check_dead(&w, &clones[1]);
    for (unsigned i = 0; i < N_CLONES; i++) {
        g_autofree char *run_dir = g_strdup(clones[i].run_dir);
        g_autofree char *disk = clone_disk(&w, &clones[i]);
        g_assert_true(g_file_test(disk, G_FILE_TEST_EXISTS));
        clone_destroy(&w, &clones[i]);
        g_assert_false(g_file_test(disk, G_FILE_TEST_EXISTS));
        g_assert_true(w.driver->ops->destroy(w.driver, run_dir, NULL));
        g_free(seen[i]);
    }
    world_close(&w);
}

static void count_boots(void *user, const char *line)
{
    if (strcmp(line, "booting the guest") == 0)
        g_atomic_int_inc((int *)user);
}

struct preparer {
    struct world *w;
    int boots;
};

static gpointer prepare_thread(gpointer data)
{
    struct preparer *p = data;
    g_autoptr(GError) error = NULL;
    p->w->driver->ops->prepare(p->w->driver, p->w->template_dir, &test_shape, count_boots,
                               &p->boots, &error);
    g_assert_no_error(error);
    return NULL;
}

static char *only_image(struct world *w)
{
    g_autofree char *parent = g_build_filename(w->template_dir, "vm", NULL);
    g_autoptr(GDir) dir = g_dir_open(parent, 0, NULL);
    g_assert_nonnull(dir);
    char *found = NULL;
    for (const char *name; (name = g_dir_read_name(dir));) {
        if (g_str_has_prefix(name, ".lock-"))
            continue;
        g_assert_null(found);
        g_assert_false(g_str_has_prefix(name, "."));
        found = g_build_filename(parent, name, NULL);
    }
    return found;
}

/* Built once for any number of callers; a damaged one is noticed and built again. */
static void test_prepare(void)
{
    if (skip())
        return;
    struct world w;
    world_open(&w);
    struct preparer preparer = {.w = &w};
    GThread *threads[3];
    for (unsigned i = 0; i < G_N_ELEMENTS(threads); i++)
        threads[i] = g_thread_new("prepare", prepare_thread, &preparer);
    for (unsigned i = 0; i < G_N_ELEMENTS(threads); i++)
        g_thread_join(threads[i]);
    g_assert_cmpint(preparer.boots, ==, 1);

    g_autofree char *image = only_image(&w);
    g_autofree char *memory = g_build_filename(image, "memory", NULL);
    int fd = open(memory, O_RDWR | O_CLOEXEC);
    g_assert_cmpint(fd, >=, 0);
    char byte = 0;
    g_assert_cmpint(pread(fd, &byte, 1, 20 << 20), ==, 1);
    byte ^= 1;
    g_assert_cmpint(pwrite(fd, &byte, 1, 20 << 20), ==, 1);
    close(fd);
    struct clone c;
    clone_create(&w, &c, 1, NULL, NULL);
    g_autofree char *again = only_image(&w);
    g_assert_cmpstr(again, ==, image);

    /* Another agent: another image, and the old one goes. The VM stays. */
    g_autofree char *agent = g_build_filename(w.state_dir, "agent", NULL);
    const char *argv[] = {
        "sh", "-c", "cat \"$1\" >\"$2\" && echo >>\"$2\"", "sh", w.env.agent_path, agent, NULL};
    struct sp_program program = {.argv = argv, .timeout_ms = 5000};
    g_assert_true(sp_program_run(&program, NULL));
    w.env.agent_path = agent;
    prepare_thread(&preparer);
    g_assert_cmpint(preparer.boots, ==, 2);
    g_autofree char *other = only_image(&w);
    g_assert_cmpstr(other, !=, image);
    g_autofree char *random = check_identity(&w, &c);
    clone_destroy(&w, &c);
    world_close(&w);
}

/* A template that is not ready is refused, in its own words, and leaves nothing. */
static void test_not_ready(void)
{
    if (skip())
        return;
    struct world w;
    world_open(&w);
    g_autofree char *config = g_build_filename(w.template_dir, "config.json", NULL);
    const char *text = "{\"format\":1,\"user\":\"user\",\"ready\":[\"/bin/tool\",\"nonsense\"]}";
    g_assert_true(g_file_set_contents(config, text, -1, NULL));
    g_autoptr(GError) error = NULL;
    struct clone c;
    clone_plan(&w, &c, NULL);
    g_assert_null(clone_try(&w, &c, 1, NULL, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_assert_nonnull(strstr(error->message, "exit code 2"));
    g_assert_null(only_image(&w));
    clone_destroy(&w, &c);
    world_close(&w);
}

/* What test_killed() kills: creates a VM and writes a byte to stdout after each step. */
static void tell(void *user, const char *step, int64_t us)
{
    g_assert_cmpint(write(STDOUT_FILENO, ".", 1), ==, 1);
}

static int victim(const char *state_dir, const char *id)
{
    struct world w;
    struct clone c;
    world_join(&w, state_dir);
    clone_plan(&w, &c, id);
    clone_try(&w, &c, 1, tell, NULL, NULL);
    pause();
    return 1;
}

/* Kills a worker delay_us after it has done so many steps of a create. */
static void kill_victim(struct world *w, struct clone *c, unsigned steps, unsigned delay_us)
{
    const char *argv[] = {"/proc/self/exe", "victim", w->state_dir, c->id, NULL};
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

static const char *how_far(const struct clone *c)
{
    struct sp_record record = {0};
    if (!sp_record_load(c->run_dir, &record, NULL))
        return "nothing";
    const char *text = record.started ? "ready" : record.pid ? "a process" : "an intent";
    sp_record_clear(&record);
    return text;
}

/* The worker is killed at some moment of a create. Whatever there was by then, destroy() removes.
 */
static void test_killed(void)
{
    if (skip())
        return;
    struct world w;
    world_open(&w);
    g_autoptr(GError) error = NULL;
    w.driver->ops->prepare(w.driver, w.template_dir, &test_shape, NULL, NULL, &error);
    g_assert_no_error(error);
    unsigned with_process = 0;
    for (unsigned i = 0; i < 20; i++) {
        struct clone c;
        clone_plan(&w, &c, NULL);
        kill_victim(&w, &c, 1 + i / 2, i % 2 ? 2000 : 0);
        const char *left = how_far(&c);
        g_test_message("killed after step %u: it left %s", 1 + i / 2, left);
        with_process += strcmp(left, "a process") == 0;
        if (strcmp(left, "ready") != 0) {
            g_assert_null(w.driver->ops->adopt(w.driver, c.run_dir, NULL, &error));
            g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
            g_clear_error(&error);
        }
        clone_destroy(&w, &c);
        g_autofree char *disk = clone_disk(&w, &c);
        g_assert_false(g_file_test(disk, G_FILE_TEST_EXISTS));
    }
    g_assert_cmpuint(with_process, >, 2);
    world_close(&w);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "launcher") == 0)
        return sp_launcher_main(SP_LAUNCHER_FD);
    if (argc == 4 && strcmp(argv[1], "victim") == 0)
        return victim(argv[2], argv[3]);
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/microvm/live/clones", test_clones);
    g_test_add_func("/microvm/live/prepare", test_prepare);
    g_test_add_func("/microvm/live/not_ready", test_not_ready);
    g_test_add_func("/microvm/live/killed", test_killed);
    return g_test_run();
}
