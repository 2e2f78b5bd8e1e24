#include <glib.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/record.h"

#define ID "sbx_0123456789abcdefghjkmnpqrs"

struct fixture {
    char *dir;
};

static void set_up(struct fixture *f, gconstpointer data)
{
    f->dir = g_dir_make_tmp("space-record-XXXXXX", NULL);
    g_assert_nonnull(f->dir);
}

static void tear_down(struct fixture *f, gconstpointer data)
{
    g_autofree char *path = g_build_filename(f->dir, SP_RECORD_FILE, NULL);
    unlink(path);
    g_assert_cmpint(rmdir(f->dir), ==, 0); /* no temporary file is left */
    g_free(f->dir);
}

static struct sp_record sample(void)
{
    return (struct sp_record){.id = g_strdup(ID),
                              .tier = g_strdup("container"),
                              .template_digest = g_strdup("sha256:00"),
                              .cgroup = g_strdup(ID),
                              .slot = 17};
}

static void test_round_trip(struct fixture *f, gconstpointer data)
{
    g_autoptr(GError) error = NULL;
    struct sp_record r = sample(), back = {0};
    g_assert_false(sp_record_load(f->dir, &back, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
    g_clear_error(&error);
    r.extra = g_key_file_new();
    g_key_file_set_string(r.extra, "microvm", "accel", "tcg");
    g_assert_true(sp_record_save(f->dir, &r, &error));
    r.started = true;
    g_assert_true(sp_record_set_process(&r, getpid(), &error));
    g_assert_true(sp_record_save(f->dir, &r, &error));
    g_assert_no_error(error);
    g_assert_true(sp_record_load(f->dir, &back, &error));
    g_assert_cmpstr(back.id, ==, ID);
    g_assert_cmpstr(back.tier, ==, "container");
    g_assert_cmpstr(back.template_digest, ==, "sha256:00");
    g_assert_cmpstr(back.boot_id, ==, r.boot_id);
    g_assert_cmpstr(back.cgroup, ==, ID);
    g_assert_cmpuint(back.slot, ==, 17);
    g_assert_true(back.started);
    g_assert_cmpint(back.pid, ==, getpid());
    g_assert_cmpuint(back.pid_start_ticks, ==, r.pid_start_ticks);
    g_autofree char *accel = g_key_file_get_string(back.extra, "microvm", "accel", NULL);
    g_assert_cmpstr(accel, ==, "tcg");
    sp_record_clear(&r);
    sp_record_clear(&back);
}

static void test_damaged_files_are_refused(struct fixture *f, gconstpointer data)
{
    static const char *const rows[] = {
        "",
        "[instance]\n",
        "nonsense",
        "[instance]\nid=../../x\ntier=container\nslot=1\n",
        "[instance]\nid=" ID "\ntier=container\nslot=99999\n",
        "[instance]\nid=" ID "\ntier=container\n",
        "[instance]\nid=" ID "\ntier=container\nslot=1\ncgroup=../x\n",
        "[instance]\nid=" ID "\ntier=container\nslot=1\npid=-1\n",
    };
    g_autofree char *path = g_build_filename(f->dir, SP_RECORD_FILE, NULL);
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_assert_true(g_file_set_contents(path, rows[i], -1, NULL));
        struct sp_record r = {0};
        g_autoptr(GError) error = NULL;
        g_assert_false(sp_record_load(f->dir, &r, &error));
        g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL); /* not "there is none" */
        g_assert_null(r.id);
    }
}

static void expect_gone(const struct sp_record *r)
{
    g_autoptr(GError) error = NULL;
    g_assert_cmpint(sp_record_open_process(r, &error), ==, -1);
    g_assert_error(error, SP_ERROR, SP_ERROR_NOT_FOUND);
}

static void test_process(struct fixture *f, gconstpointer data)
{
    struct sp_record r = sample();
    expect_gone(&r); /* never started */
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_record_set_process(&r, pid, &error));
    int fd = sp_record_open_process(&r, &error);
    g_assert_no_error(error);
    g_assert_cmpint(fd, >=, 0);
    close(fd);
    r.pid_start_ticks++; /* the pid of another process */
    expect_gone(&r);
    r.pid_start_ticks--;
    r.boot_id[0] ^= 1; /* the same numbers before a reboot */
    expect_gone(&r);
    r.boot_id[0] ^= 1;
    kill(pid, SIGKILL);
    siginfo_t info;
    g_assert_cmpint(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), ==, 0);
    expect_gone(&r); /* a zombie */
    waitpid(pid, NULL, 0);
    expect_gone(&r);
    sp_record_clear(&r);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(name, function) g_test_add(name, struct fixture, NULL, set_up, function, tear_down)
    ADD("/record/round_trip", test_round_trip);
    ADD("/record/damaged", test_damaged_files_are_refused);
    ADD("/record/process", test_process);
    return g_test_run();
}
