/* CRIU as a program: finding it, its version, a dump. */
#include "driver/container/criu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/clone.h"
#include "disk/program.h"
#include "disk/tree.h"
#include "os/pidfd.h"

#define VERSION_MS 5000
#define MIN_MAJOR 4
#define MIN_MINOR 2
#define BASE_MS 6000
#define BYTES_PER_MS 20000
#define MAX_MS 600000
#define LOG "dump.log"
/* Of an unlinked file that is still open: it goes into the images. */
#define GHOST_LIMIT "256M"

char *sp_criu_find(void)
{
    const char *configured = g_getenv("SPACE_CRIU");
    if (configured && *configured)
        return access(configured, X_OK) == 0 ? g_strdup(configured) : NULL;
    return sp_program_find("criu");
}

static void take_version(void *user, const char *line)
{
    char **version = user;
    if (!*version && g_str_has_prefix(line, "Version: "))
        *version = g_strndup(line + strlen("Version: "), 32);
}

char *sp_criu_version(const char *criu)
{
    char *version = NULL;
    const char *const argv[] = {criu, "--version", NULL};
    const struct sp_program program = {
        .argv = argv, .timeout_ms = VERSION_MS, .progress = take_version, .user = &version};
    sp_program_run(&program, NULL);
    return version;
}

bool sp_criu_version_fits(const char *version)
{
    unsigned major = 0, minor = 0;
    if (sscanf(version, "%u.%u", &major, &minor) < 1)
        return false;
    return major > MIN_MAJOR || (major == MIN_MAJOR && minor >= MIN_MINOR);
}

int sp_criu_timeout_ms(int64_t bytes)
{
    return BASE_MS + (int)MIN(bytes / BYTES_PER_MS, MAX_MS);
}

/* Under what name CRIU knows a file that the agent has open and that is on no mount of the sandbox:
 * "file[<mount id>:<inode>]", both in hex (criu(8), --external). */
static char *external_name(pid_t pid, int number, GError **error)
{
    g_autofree char *file = g_strdup_printf("/proc/%d/fd/%d", (int)pid, number);
    g_autofree char *info = g_strdup_printf("/proc/%d/fdinfo/%d", (int)pid, number);
    g_autofree char *text = NULL;
    struct stat st;
    if (stat(file, &st) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "%s", file);
        return NULL;
    }
    if (!g_file_get_contents(info, &text, NULL, error))
        return NULL;
    const char *at = strstr(text, "mnt_id:");
    guint64 mount = at ? g_ascii_strtoull(at + strlen("mnt_id:"), NULL, 10) : 0;
    return g_strdup_printf("file[%" G_GINT64_MODIFIER "x:%" G_GINT64_MODIFIER "x]", mount,
                           (guint64)st.st_ino);
}

/* What is not in the images but needed with them. */
static GKeyFile *note_facts(struct sp_container *container, struct sp_cgroup *cgroup,
                            const char *folder, GError **error)
{
    g_autoptr(GKeyFile) facts = g_key_file_new();
    g_autofree char *exe = g_strdup_printf("/proc/%d/exe", (int)container->record.pid);
    g_autofree char *agent = g_build_filename(folder, SP_CRIU_AGENT, NULL);
    g_autofree char *path = g_build_filename(folder, SP_CRIU_FACTS, NULL);
    const struct sp_container_driver *driver = (struct sp_container_driver *)container->base.driver;
    if (!sp_file_clone(exe, agent, 0555, NULL, error))
        return NULL;
    if (sp_cgroups_kind(driver->cgroups) != SP_CGROUP_V1) {
        g_autofree char *group = external_name(container->record.pid, 4, error);
        g_autofree char *oom = group ? external_name(container->record.pid, 5, error) : NULL;
        if (!oom || !sp_criu_groups_note(cgroup, facts, error))
            return NULL;
        g_key_file_set_string(facts, "files", "cgroup", group);
        g_key_file_set_string(facts, "files", "oom", oom);
    }
    return g_key_file_save_to_file(facts, path, error) ? g_steal_pointer(&facts) : NULL;
}

/* CRIU's last error, without its time stamp, so that the user can tell what it was. */
char *sp_criu_last_error(const char *log_path)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents(log_path, &text, NULL, NULL))
        return g_strdup("it wrote no log");
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    const char *found = NULL;
    for (char **l = lines; *l; l++) {
        const char *at = strstr(*l, "Error (");
        /* The first one is the cause, and what follows are its consequences; but for the limits
         * that CRIU can do without. */
        if (at && !found && !strstr(at, "rlimit:"))
            found = at;
    }
    return g_strndup(found ? found : "no error in its log", 300);
}

static bool run_dump(struct sp_container *container, const char *criu, const char *folder,
                     const char *work, GKeyFile *facts, struct sp_cgroup *cgroup, GError **error)
{
    g_autofree char *pid = g_strdup_printf("%d", (int)container->record.pid);
    g_autofree char *freezer = sp_cgroup_freezer_dir(cgroup);
    g_autofree char *group = g_key_file_get_string(facts, "files", "cgroup", NULL);
    g_autofree char *oom = g_key_file_get_string(facts, "files", "oom", NULL);
    /* --freeze-cgroup: it attaches to the frozen processes, thaws them into its hold, and leaves
     * them frozen; no instruction of theirs runs. --network-lock skip: nothing comes from outside.
     */
    const char *argv[40] = {criu,
                            "dump",
                            "--tree",
                            pid,
                            "--images-dir",
                            folder,
                            "--work-dir",
                            work,
                            "--log-file",
                            LOG,
                            "-v3",
                            "--leave-running",
                            "--freeze-cgroup",
                            freezer,
                            "--manage-cgroups=ignore",
                            "--network-lock",
                            "skip",
                            "--tcp-established",
                            "--ghost-limit",
                            GHOST_LIMIT,
                            "--external",
                            "mnt[/dev]:dev"};
    unsigned n = 0;
    while (argv[n])
        n++;
    const char *const externals[] = {group, oom};
    for (unsigned i = 0; i < G_N_ELEMENTS(externals) && externals[i]; i++) {
        argv[n++] = "--external";
        argv[n++] = externals[i];
    }
    struct sp_cgroup_usage usage = {0};
    sp_cgroup_usage(cgroup, &usage, NULL);
    const char *const env[] = {SP_CRIU_NO_IPTABLES, NULL};
    const struct sp_program program = {
        .argv = argv, .env = env, .timeout_ms = sp_criu_timeout_ms(usage.memory_bytes)};
    GError *cause = NULL;
    if (sp_program_run(&program, &cause))
        return true;
    g_autofree char *log = g_build_filename(work, LOG, NULL);
    g_autofree char *why = sp_criu_last_error(log);
    bool hangs = g_error_matches(cause, SP_ERROR, SP_ERROR_UNAVAILABLE);
    g_set_error(error, SP_ERROR, hangs ? SP_ERROR_INTERNAL : SP_ERROR_FAILED_PRECONDITION,
                "CRIU cannot save the memory of %s (%s); memory: false saves its disk",
                container->record.id, hangs ? cause->message : why);
    g_error_free(cause);
    return false;
}

/* The restored processes read their images themselves, as the sandbox's root, from a directory that
 * CRIU has open. Others do not come here: the folders above are the host root's alone. */
static bool open_images(const char *folder, GError **error)
{
    SP_CLEANUP(sp_close_fdp)
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    bool ok = dir && fd >= 0 && fchmod(fd, 0755) == 0;
    for (const char *name; ok && (name = g_dir_read_name(dir));)
        ok = fchmodat(fd, name, 0644, 0) == 0;
    if (!ok)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "modes of %s", folder);
    return ok;
}

/* Whether it is a process of the worker's own user. Asked before anything that the process itself
 * has written: a sandbox could name our directory among its arguments, or have them where reading
 * never ends. */
static bool is_own(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/status", (int)pid);
    g_autofree char *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return false;
    const char *line = strstr(text, "\nUid:"); /* proc_pid_status(5); the name has no newlines */
    unsigned real, effective, saved;
    return line && sscanf(line + 5, "%u %u %u", &real, &effective, &saved) == 3 &&
           real == geteuid() && effective == geteuid() && saved == geteuid();
}

bool sp_criu_is_overdue(const char *run_dir)
{
    g_autofree char *work = g_build_filename(run_dir, SP_CRIU_WORK, NULL);
    struct stat st;
    return stat(work, &st) == 0 &&
           time(NULL) - st.st_mtim.tv_sec > sp_criu_timeout_ms(INT64_MAX) / 1000;
}

int sp_criu_left_dump(const char *run_dir)
{
    g_autofree char *work = g_build_filename(run_dir, SP_CRIU_WORK, NULL);
    g_autoptr(GDir) proc = access(work, F_OK) == 0 ? g_dir_open("/proc", 0, NULL) : NULL;
    for (const char *name; proc && (name = g_dir_read_name(proc));) {
        pid_t pid = (pid_t)g_ascii_strtoll(name, NULL, 10);
        if (pid <= 0 || pid == getpid())
            continue;
        /* The pidfd first: what is read then is of that process or of a later one. */
        SP_CLEANUP(sp_close_fdp) int pidfd = sp_pidfd_open(pid, NULL);
        g_autofree char *path = g_strdup_printf("/proc/%d/cmdline", (int)pid);
        g_autofree char *args = NULL;
        gsize len = 0;
        if (pidfd < 0 || !is_own(pid) || !g_file_get_contents(path, &args, &len, NULL))
            continue;
        if (memmem(args, len, work, strlen(work) + 1) && !sp_pidfd_wait(pidfd, 0))
            return sp_steal_fd(&pidfd);
    }
    return -1;
}

bool sp_criu_dump(struct sp_container *container, const char *criu, const char *folder,
                  GError **error)
{
    SP_CLEANUP(sp_cgroup_free_p)
    struct sp_cgroup *cgroup = sp_container_cgroup(container, error);
    if (!cgroup)
        return false;
    g_autofree char *work = g_build_filename(container->run_dir, SP_CRIU_WORK, NULL);
    if (mkdir(folder, 0700) < 0 || (mkdir(work, 0700) < 0 && errno != EEXIST)) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", folder);
        return false;
    }
    g_atomic_int_set(&container->dumping, 1);
    g_autoptr(GKeyFile) facts = note_facts(container, cgroup, folder, error);
    bool ok = facts && run_dump(container, criu, folder, work, facts, cgroup, error) &&
              open_images(folder, error);
    g_atomic_int_set(&container->dumping, 0);
    sp_tree_remove(work);
    return ok;
}
