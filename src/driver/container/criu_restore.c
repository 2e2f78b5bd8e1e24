/* A restore by CRIU. It runs in the sandbox's cgroup and in a mount namespace of its own, where the
 * sandbox's root and /dev are attached for it: nothing of that is seen outside or left after it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/tree.h"
#include "driver/container/criu.h"
#include "os/pidfd.h"

#define LOG "restore.log"
#define PID_FILE "pid"
#define CGROUP_NUMBER 10
#define OOM_NUMBER 11

struct places {
    char *work;       /* logs and the pid, in the run directory */
    const char *top;  /* in CRIU's mount namespace a tmpfs that holds the next two */
    char *root, *dev; /* there */
};

static void places_clear(struct places *p)
{
    g_free(p->work);
    g_free(p->root);
    g_free(p->dev);
}

/* The sandbox's root user looks these paths up, so they may not lie in a directory that is closed
 * to it; and what is below the place is hidden from CRIU. */
static const char *choose_top(const struct sp_criu_restore *what)
{
    static const char *const dirs[] = {"/mnt", "/srv", "/media", "/opt"};
    const char *const needed[] = {what->criu, what->folder, what->run_dir};
    for (size_t d = 0; d < G_N_ELEMENTS(dirs); d++) {
        bool fits = g_file_test(dirs[d], G_FILE_TEST_IS_DIR);
        for (size_t i = 0; i < G_N_ELEMENTS(needed); i++)
            fits = fits && !g_str_has_prefix(needed[i], dirs[d]);
        if (fits)
            return dirs[d];
    }
    return NULL;
}

static bool make_places(const struct sp_criu_restore *what, struct places *ret, GError **error)
{
    ret->top = choose_top(what);
    if (!ret->top) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "the host has no unused /mnt or /srv");
        return false;
    }
    ret->work = g_build_filename(what->run_dir, SP_CRIU_WORK, NULL);
    ret->root = g_build_filename(ret->top, "root", NULL);
    ret->dev = g_build_filename(ret->top, "dev", NULL);
    if (mkdir(ret->work, 0700) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", ret->work);
    return false;
}

static struct sp_plan *make_plan(struct sp_criu_restore *what, const struct places *places,
                                 GKeyFile *facts)
{
    struct sp_plan *plan = sp_plan_new(what->name);
    g_autofree char *dev = g_strdup_printf("mnt[dev]:%s", places->dev);
    g_autofree char *group = g_key_file_get_string(facts, "files", "cgroup", NULL);
    g_autofree char *oom = g_key_file_get_string(facts, "files", "oom", NULL);
    g_autofree char *inherit_group =
        g_strdup_printf("fd[%d]:%s", CGROUP_NUMBER, group ? group : "");
    g_autofree char *inherit_oom = g_strdup_printf("fd[%d]:%s", OOM_NUMBER, oom ? oom : "");
    const char *argv[40] = {what->criu,
                            "restore",
                            "--images-dir",
                            what->folder,
                            "--work-dir",
                            places->work,
                            "--log-file",
                            LOG,
                            "-v3",
                            "--root",
                            places->root,
                            "--manage-cgroups=ignore",
                            "--network-lock",
                            "skip",
                            "--tcp-established",
                            "--restore-detached",
                            "--restore-sibling",
                            "--pidfile",
                            PID_FILE,
                            "--external",
                            dev};
    unsigned n = 0;
    while (argv[n])
        n++;
    sp_plan_namespaces(plan, CLONE_NEWNS);
    /* The restored processes inherit it: with --manage-cgroups=ignore CRIU makes none. */
    sp_plan_cgroup_namespace(plan);
    sp_plan_private_mounts(plan);
    sp_plan_mount(plan, "tmpfs", places->top, "mode=0755,size=64k", 0);
    sp_plan_mkdir(plan, places->root, 0755);
    sp_plan_mkdir(plan, places->dev, 0755);
    sp_plan_attach(plan, "root", sp_steal_fd(what->root_fd), places->root);
    sp_plan_attach(plan, "dev", sp_steal_fd(what->dev_fd), places->dev);
    if (group && oom) {
        sp_plan_pass_fd(plan, "cgroup-below", sp_steal_fd(what->cgroup_fd), CGROUP_NUMBER);
        sp_plan_pass_fd(plan, "oom", sp_steal_fd(what->oom_fd), OOM_NUMBER);
        argv[n++] = "--inherit-fd";
        argv[n++] = inherit_group;
        argv[n++] = "--inherit-fd";
        argv[n++] = inherit_oom;
    }
    sp_plan_exec(plan, what->criu, argv,
                 (const char *const[]){
                     SP_CRIU_NO_IPTABLES,
                     "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL});
    return plan;
}

/* The exit status is the launcher's; whether it went well is in the log, and the pid in its file.
 */
static bool read_result(const struct places *places, pid_t *ret_pid, GError **error)
{
    g_autofree char *log = g_build_filename(places->work, LOG, NULL);
    g_autofree char *file = g_build_filename(places->work, PID_FILE, NULL);
    g_autofree char *text = NULL, *number = NULL;
    bool done = g_file_get_contents(log, &text, NULL, NULL) &&
                strstr(text, "Restore finished successfully");
    int pid = done && g_file_get_contents(file, &number, NULL, NULL)
                  ? (int)g_ascii_strtoll(number, NULL, 10)
                  : 0;
    if (pid > 0) {
        *ret_pid = pid;
        return true;
    }
    g_autofree char *why = sp_criu_last_error(log);
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "CRIU could not restore: %s", why);
    return false;
}

/* A pid may have ended and be somebody else's by now: it must be in our group. */
static bool check_member(struct sp_criu_restore *what, pid_t pid, GError **error)
{
    g_autofree char *dir = sp_cgroup_freezer_dir(what->cgroup);
    g_autofree char *path = g_build_filename(dir, "cgroup.procs", NULL);
    g_autofree char *text = NULL;
    g_autofree char *line = g_strdup_printf("\n%d\n", (int)pid);
    if (g_file_get_contents(path, &text, NULL, NULL)) {
        g_autofree char *whole = g_strconcat("\n", text, NULL);
        if (strstr(whole, line))
            return true;
    }
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "the restored process %d has ended", (int)pid);
    return false;
}

/* The pages are in files of this name. */
static int64_t images_bytes(const char *folder)
{
    int64_t bytes = 0;
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    for (const char *name; dir && (name = g_dir_read_name(dir));) {
        g_autofree char *path = g_build_filename(folder, name, NULL);
        struct stat st;
        if (g_str_has_prefix(name, "pages-") && stat(path, &st) == 0)
            bytes += st.st_size;
    }
    return bytes;
}

static bool run(struct sp_launcher *launcher, struct sp_criu_restore *what,
                const struct places *places, GKeyFile *facts, GError **error)
{
    SP_CLEANUP(sp_plan_free_p) struct sp_plan *plan = make_plan(what, places, facts);
    pid_t pid;
    SP_CLEANUP(sp_close_fdp) int pidfd = -1;
    if (!sp_plan_join_cgroup(plan, what->cgroup, error) ||
        !sp_launcher_spawn(launcher, plan, &pid, &pidfd, error))
        return false;
    int timeout_ms = sp_criu_timeout_ms(images_bytes(what->folder));
    if (sp_pidfd_wait(pidfd, timeout_ms))
        return true;
    sp_pidfd_kill(pidfd, SP_CONTAINER_END_MS, NULL);
    g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "CRIU did not restore within %d s",
                timeout_ms / 1000);
    return false;
}

bool sp_criu_restore(struct sp_launcher *launcher, struct sp_criu_restore *what, pid_t *ret_pid,
                     int *ret_pidfd, GError **error)
{
    struct places places = {0};
    g_autoptr(GKeyFile) facts = g_key_file_new();
    g_autofree char *path = g_build_filename(what->folder, SP_CRIU_FACTS, NULL);
    pid_t pid = 0;
    SP_CLEANUP(sp_close_fdp) int pidfd = -1;
    bool ok = g_key_file_load_from_file(facts, path, G_KEY_FILE_NONE, error) &&
              make_places(what, &places, error) && run(launcher, what, &places, facts, error) &&
              read_result(&places, &pid, error);
    if (ok) {
        pidfd = sp_pidfd_open(pid, error);
        ok = pidfd >= 0 && check_member(what, pid, error) &&
             sp_criu_groups_restore(what->cgroup, facts, what->uid, error);
    }
    if (ok) {
        *ret_pid = pid;
        *ret_pidfd = sp_steal_fd(&pidfd);
    }
    if (places.work)
        sp_tree_remove(places.work);
    places_clear(&places);
    return ok;
}
