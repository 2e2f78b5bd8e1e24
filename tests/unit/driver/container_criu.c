/* Memory of containers by CRIU. Needs root; what needs a working CRIU says so loudly where there is
 * none ($SPACE_CRIU, or criu in PATH). */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "container_world.h"
#include "disk/saved.h"
#include "driver/container/criu.h"
#include "os/pidfd.h"

#define SAVED "snp_01jd0000000000000000000001"

/* The verdict, waited for; *ret_reason as can_save_memory() gives it. */
static bool verdict(struct fixture *f, char **ret_reason)
{
    g_autoptr(GError) error = NULL;
    char *criu = sp_criu_trial_result((struct sp_container_driver *)f->driver, 20000, &error);
    g_free(criu);
    bool can = f->ops->can_save_memory(f->driver, ret_reason);
    g_assert_cmpint(can, ==, criu != NULL);
    return can;
}

static bool is_here(struct fixture *f)
{
    g_autofree char *reason = NULL;
    if (verdict(f, &reason))
        return true;
    g_printerr("NOT TESTED: the memory of containers: %s\n", reason);
    g_test_skip("NOT TESTED: no working CRIU");
    return false;
}

static void test_trial(struct fixture *f, gconstpointer data)
{
    gint64 start = sp_time_monotonic_ms();
    struct sp_tier_status status;
    f->ops->probe(f->driver, &status);
    g_free(status.detail);
    g_autofree char *reason = NULL;
    bool can = verdict(f, &reason);
    gint64 took = sp_time_monotonic_ms() - start;
    g_test_message("%s in %d ms: %s", can ? "works" : "does not work", (int)took,
                   reason ? reason : "");
    g_assert_cmpint(took, <, 17000);
    /* The next worker knows. */
    f->ops->driver_free(f->driver);
    f->driver = sp_driver_container_new(&f->env, NULL);
    start = sp_time_monotonic_ms();
    g_autofree char *again = NULL;
    g_assert_cmpint(verdict(f, &again), ==, can);
    g_assert_cmpstr(again, ==, reason);
    g_assert_cmpint(sp_time_monotonic_ms() - start, <, 1000);
}

/* A program that stands for criu. */
static char *write_script(struct fixture *f, const char *text)
{
    char *path = g_build_filename(f->state, "criu.sh", NULL);
    g_assert_true(g_file_set_contents_full(path, text, -1, G_FILE_SET_CONTENTS_NONE, 0755, NULL));
    return path;
}

static void test_bad_programs(struct fixture *f, gconstpointer data)
{
    static const struct {
        const char *script, *reason;
        int max_ms;
    } cases[] = {
        {NULL, "not installed", 1000},
        {"#!/bin/sh\necho 'Version: 3.17.1'\n", "version 3.17.1; 4.2 or newer", 2000},
        {"#!/bin/sh\necho 'Version: 4.1.1'\n", "version 4.1.1; 4.2 or newer", 2000},
        {"#!/bin/sh\nexit 1\n", "does not tell its version", 2000},
        {"#!/bin/sh\n[ $1 = --version ] && echo 'Version: 4.2' && exit\nexit 1\n",
         "does not work on this host", 8000},
        /* Hangs, and does not heed a polite request. */
        {"#!/bin/sh\n[ $1 = --version ] && echo 'Version: 5.0' && exit\n"
         "trap '' TERM INT HUP\nwhile :; do sleep 1; done\n",
         "took too long", 16000},
        /* Says that it has worked. */
        {"#!/bin/sh\n[ $1 = --version ] && echo 'Version: 4.3' && exit\nexit 0\n",
         "does not work on this host", 8000},
    };
    const char *real = g_getenv("SPACE_CRIU");
    g_autofree char *before = g_strdup(real);
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *path = cases[i].script ? write_script(f, cases[i].script)
                                                : g_build_filename(f->state, "none", NULL);
        f->ops->driver_free(f->driver);
        g_setenv("SPACE_CRIU", path, TRUE);
        f->driver = sp_driver_container_new(&f->env, NULL);
        gint64 start = sp_time_monotonic_ms();
        g_autofree char *reason = NULL;
        g_assert_false(verdict(f, &reason));
        g_test_message("%s", reason);
        g_assert_nonnull(strstr(reason, cases[i].reason));
        g_assert_nonnull(strstr(reason, "memory: false"));
        g_assert_cmpint(sp_time_monotonic_ms() - start, <, cases[i].max_ms);
        /* And what a user then hears. */
        if (i == 1) {
            struct box box = {0};
            create(f, &box, 60);
            const struct sp_save_spec spec = {.saved_name = SAVED, .memory = true, .durable = true};
            g_autoptr(GError) error = NULL;
            g_assert_null(f->ops->save_begin(box.instance, &spec, &error));
            g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
            destroy(f, &box);
            clear(&box);
        }
    }
    if (before)
        g_setenv("SPACE_CRIU", before, TRUE);
    else
        g_unsetenv("SPACE_CRIU");
}

static bool save(struct fixture *f, struct box *box, GError **error)
{
    const struct sp_save_spec spec = {.saved_name = SAVED, .memory = true, .durable = true};
    struct sp_saving *saving = f->ops->save_begin(box->instance, &spec, error);
    struct sp_saved_result result;
    bool ok = saving && f->ops->pause(box->instance, error) &&
              f->ops->save_capture(saving, error) &&
              f->ops->save_finish(saving, &result, NULL, NULL, error);
    f->ops->save_free(saving);
    return ok;
}

static void must_save(struct fixture *f, struct box *box)
{
    g_autoptr(GError) error = NULL;
    g_assert_true(save(f, box, &error));
    g_assert_no_error(error);
}

static void wake(struct fixture *f, struct box *box, unsigned slot)
{
    struct sp_driver_spec spec = spec_of(f, box, slot);
    g_autofree char *saved = sp_saved_path(f->volume, SAVED);
    spec.saved_dir = saved;
    g_autoptr(GError) error = NULL;
    box->instance = f->ops->create(f->driver, &spec, NULL, NULL, &error);
    g_assert_no_error(error);
    g_assert_true(sp_saved_remove(f->volume, SAVED, &error));
    g_assert_no_error(error);
}

static guint64 counter(struct fixture *f, struct box *box)
{
    g_autofree char *text = ask(f, box, "cat /run/count");
    return g_ascii_strtoull(text, NULL, 10);
}

/* A counter in memory goes on; so do the groups, the limits, the way out of everything. */
static void test_wake(struct fixture *f, gconstpointer data)
{
    if (!is_here(f))
        return;
    struct box box = {0};
    create(f, &box, 61);
    expect(f, &box, "count", "ok\n");
    g_usleep(100000);
    for (unsigned i = 0; i < 3; i++) {
        must_save(f, &box);
        bool paused = false;
        struct sp_instance *found = f->ops->adopt(f->driver, box.run_dir, &paused, NULL);
        g_assert_true(paused);
        f->ops->instance_free(found);
        destroy(f, &box);
        char id[SP_ID_MAX];
        g_strlcpy(id, box.id, sizeof id);
        box.instance = NULL;
        wake(f, &box, 61);
        expect(f, &box, "status", "0 0 1 inner\n");
        guint64 first = counter(f, &box);
        g_usleep(100000);
        guint64 second = counter(f, &box);
        g_test_message("%d: %d, %d", (int)i, (int)first, (int)second);
        g_assert_cmpuint(first, >, 10);
        g_assert_cmpuint(second, >, first);
        expect(f, &box, "cat /etc/os", "image\n");
    }
    expect(f, &box, "attacks",
           "mount EPERM\numount EPERM\nunshare EPERM\nsetns EPERM\nclone EPERM\nbpf EPERM\n"
           "keyctl EPERM\nio_uring EPERM\nmknod EPERM\nfifo ok\npacket EAFNOSUPPORT\nraw EPERM\n"
           "inet ok\nnetlink ok\naudit EPROTONOSUPPORT\nunknown ENOSYS\nhostname EPERM\nchroot ok\n"
           "statmount ENOSYS\n");
    g_autofree char *status = ask(f, &box, "cat /proc/self/status");
    g_assert_nonnull(strstr(status, "CapBnd:\t00000000100405fb\n"));
    g_assert_nonnull(strstr(status, "NoNewPrivs:\t1\n"));
    g_assert_nonnull(strstr(status, "Seccomp:\t2\n"));
    g_autofree char *info = ask(f, &box, "cat /proc/self/mountinfo");
    g_assert_null(strstr(info, f->state));
    g_autofree char *groups = ask(f, &box, "cat /proc/self/cgroup");
    g_auto(GStrv) lines = g_strsplit(g_strchomp(groups), "\n", -1);
    for (char **l = lines; *l; l++)
        g_assert_true(g_str_has_suffix(*l, ":/"));
    if (sp_cgroups_kind(((struct sp_container_driver *)f->driver)->cgroups) != SP_CGROUP_V1)
        expect(f, &box, "kill-group", "kill ok\nstatus 9\nrmdir ok\nagain ok\n");
    if (sp_cgroups_kind(((struct sp_container_driver *)f->driver)->cgroups) != SP_CGROUP_V1)
        expect(f, &box, "groups",
               "mkdir ok\nmove ok\nkill ok\nstatus 9\nrmdir ok\nlimit EACCES\n"
               "freeze-self EACCES\nup is here\noom ok\noom-write EBADF\n");
    expect(f, &box, "fill-up", "limited EDQUOT\n");
    destroy(f, &box);
    clear(&box);
}

/* Saved, and it runs on here: a snapshot. */
static void test_goes_on(struct fixture *f, gconstpointer data)
{
    if (!is_here(f))
        return;
    struct box box = {0};
    g_autoptr(GError) error = NULL;
    create(f, &box, 62);
    expect(f, &box, "count", "ok\n");
    g_usleep(50000);
    must_save(f, &box);
    g_assert_true(f->ops->resume(box.instance, &error));
    guint64 first = counter(f, &box);
    g_usleep(50000);
    g_assert_cmpuint(counter(f, &box), >, first);
    g_autofree char *saved = sp_saved_path(f->volume, SAVED);
    g_assert_true(f->ops->check_saved(f->driver, saved, &error));
    g_assert_no_error(error);
    /* Copies and other slots are refused before anything is made. */
    struct box other = {0};
    struct sp_driver_spec spec = spec_of(f, &other, 62);
    spec.saved_dir = saved;
    spec.saved_use = SP_SAVED_COPY;
    g_assert_null(f->ops->create(f->driver, &spec, NULL, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
    g_clear_error(&error);
    spec.saved_use = SP_SAVED_WAKE;
    spec.slot = 63;
    g_assert_null(f->ops->create(f->driver, &spec, NULL, NULL, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_clear_error(&error);
    destroy(f, &other);
    const struct sp_save_spec fork = {.saved_name = "snp_01jd0000000000000000000009",
                                      .memory = true};
    g_assert_null(f->ops->save_begin(box.instance, &fork, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
    g_clear_error(&error);
    /* A connection to the outside is refused, and the sandbox runs on. */
    g_assert_true(sp_saved_remove(f->volume, SAVED, &error));
    int fd = f->ops->connect_agent(box.instance, &error);
    g_usleep(20000);
    g_assert_false(save(f, &box, &error));
    g_test_message("%s", error->message);
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_clear_error(&error);
    g_assert_true(f->ops->resume(box.instance, &error));
    close(fd);
    expect(f, &box, "status", "0 0 1 inner\n");
    first = counter(f, &box);
    g_usleep(50000);
    g_assert_cmpuint(counter(f, &box), >, first);
    destroy(f, &box);
    clear(&box);
    clear(&other);
}

/* The worker is killed while CRIU is at work, which goes on by itself: nobody takes the sandbox
 * over until it is done, and then it is whole. */
static void test_killed(struct fixture *f, gconstpointer data)
{
    if (!is_here(f))
        return;
    g_autofree char *real = sp_criu_find();
    g_autofree char *before = g_strdup(g_getenv("SPACE_CRIU"));
    g_autofree char *text =
        g_strdup_printf("#!/bin/sh\n[ $1 = dump ] && sleep 1\nexec %s \"$@\"\n", real);
    g_autofree char *script = write_script(f, text);
    f->ops->driver_free(f->driver);
    g_setenv("SPACE_CRIU", script, TRUE);
    f->driver = sp_driver_container_new(&f->env, NULL);
    g_assert_true(is_here(f));
    struct box box = {0};
    create(f, &box, 65);
    expect(f, &box, "count", "ok\n");
    g_usleep(50000);
    pid_t pid = fork();
    if (pid == 0) {
        save(f, &box, NULL);
        _exit(0);
    }
    g_usleep(500000);
    g_assert_cmpint(kill(pid, SIGKILL), ==, 0);
    int status = 0;
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_true(WIFSIGNALED(status));
    g_autoptr(GError) error = NULL;
    bool paused = false;
    struct sp_instance *found = f->ops->adopt(f->driver, box.run_dir, &paused, &error);
    g_assert_null(found);
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    for (unsigned i = 0; i < 100 && !found; i++) {
        g_clear_error(&error);
        g_usleep(50000);
        found = f->ops->adopt(f->driver, box.run_dir, &paused, &error);
    }
    g_assert_no_error(error);
    g_assert_true(paused);
    f->ops->instance_free(box.instance);
    box.instance = found;
    g_assert_true(f->ops->resume(found, &error));
    guint64 first = counter(f, &box);
    g_usleep(50000);
    g_assert_cmpuint(counter(f, &box), >, first);
    sp_saved_clean(f->volume);
    g_assert_false(sp_saved_exists(f->volume, SAVED));
    must_save(f, &box);
    g_assert_true(sp_saved_remove(f->volume, SAVED, &error));
    destroy(f, &box);
    clear(&box);
    if (before)
        g_setenv("SPACE_CRIU", before, TRUE);
    else
        g_unsetenv("SPACE_CRIU");
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Runs with -m perf. */
static void test_speed(struct fixture *f, gconstpointer data)
{
    enum { N = 30 };
    int64_t saved[N], woken[N];
    if (!is_here(f))
        return;
    struct box box = {0};
    create(f, &box, 64);
    for (unsigned i = 0; i < N; i++) {
        int64_t start = sp_time_monotonic_us();
        must_save(f, &box);
        saved[i] = sp_time_monotonic_us() - start;
        destroy(f, &box);
        box.instance = NULL;
        start = sp_time_monotonic_us();
        wake(f, &box, 64);
        woken[i] = sp_time_monotonic_us() - start;
    }
    qsort(saved, N, sizeof *saved, compare);
    qsort(woken, N, sizeof *woken, compare);
    g_test_message("save with memory %d/%d/%d us, wake %d/%d/%d us (min/p50/p90, n=%d)",
                   (int)saved[0], (int)saved[N / 2], (int)saved[N * 9 / 10], (int)woken[0],
                   (int)woken[N / 2], (int)woken[N * 9 / 10], N);
    destroy(f, &box);
    clear(&box);
}

/* A program with a directory among its arguments, as this user; a builtin waits, so that no child of it
 * stays. Returns when it has been started. */
static pid_t program_naming(const char *dir, uid_t uid)
{
    int input[2], started[2];
    g_assert_cmpint(pipe2(input, O_CLOEXEC), ==, 0);
    g_assert_cmpint(pipe2(started, O_CLOEXEC), ==, 0);
    pid_t pid = fork();
    if (pid == 0) {
        /* Its own copy of the writing end keeps the input open. */
        int keep = fcntl(input[1], F_DUPFD, 3);
        if (dup2(input[0], 0) == 0 && keep >= 0 && setresuid(uid, uid, uid) == 0)
            execl("/bin/sh", "sh", "-c", "read -r line", dir, (char *)NULL);
        _exit(1);
    }
    close(input[0]);
    close(input[1]);
    close(started[1]);
    char byte;
    g_assert_cmpint(read(started[0], &byte, 1), ==, 0); /* closed by its exec */
    close(started[0]);
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Who counts as a CRIU that an ended worker has left, and for how long. */
static void test_left_dump(struct fixture *f, gconstpointer data)
{
    struct box box = {0};
    create(f, &box, 66);
    g_autofree char *work = g_build_filename(box.run_dir, SP_CRIU_WORK, NULL);
    g_assert_cmpint(mkdir(work, 0700), ==, 0);
    pid_t stranger = program_naming(work, 65534);
    g_assert_cmpint(sp_criu_left_dump(box.run_dir), ==, -1);
    pid_t ours = program_naming(work, 0);
    int pidfd = sp_criu_left_dump(box.run_dir);
    g_assert_cmpint(pidfd, >=, 0);
    g_autoptr(GError) error = NULL;
    bool paused = false;
    g_assert_null(f->ops->adopt(f->driver, box.run_dir, &paused, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_clear_error(&error);
    g_assert_false(sp_pidfd_wait(pidfd, 0));
    /* It hangs. */
    const struct timespec times[2] = {{.tv_sec = time(NULL) - 3600}, {.tv_sec = time(NULL) - 3600}};
    g_assert_cmpint(utimensat(AT_FDCWD, work, times, 0), ==, 0);
    struct sp_instance *found = f->ops->adopt(f->driver, box.run_dir, &paused, &error);
    g_assert_no_error(error);
    g_assert_nonnull(found);
    g_assert_true(sp_pidfd_wait(pidfd, 1000));
    f->ops->instance_free(found);
    g_assert_cmpint(kill(stranger, 0), ==, 0);
    close(pidfd);
    end(stranger);
    end(ours);
    destroy(f, &box);
    clear(&box);
}

int main(int argc, char **argv)
{
    if (argc == 2 && g_str_equal(argv[1], "launcher"))
        return sp_launcher_main(SP_LAUNCHER_FD);
    g_test_init(&argc, &argv, NULL);
    if (geteuid() != 0) {
        g_printerr("NOT TESTED: the container driver needs root\n");
        g_print("1..0 # SKIP NOT TESTED: the container driver needs root\n");
        return 0;
    }
#define ADD(name, function)                                                                        \
    g_test_add("/container_criu/" name, struct fixture, NULL, set_up, function, tear_down)
    ADD("trial", test_trial);
    ADD("bad_programs", test_bad_programs);
    ADD("wake", test_wake);
    ADD("goes_on", test_goes_on);
    ADD("killed", test_killed);
    ADD("left_dump", test_left_dump);
    if (g_test_perf())
        ADD("speed", test_speed);
    return g_test_run();
}
