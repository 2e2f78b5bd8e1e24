/* Stopping a process and all below it, without a control group: by SIGSTOP. */
#include "driver/fake/fake_private.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"

#define STOP_MS 5000
#define PROCESSES_MAX 4096u

/* Appends the pids below a process, parents first. */
static void add_children(GArray *pids, pid_t pid)
{
    g_autofree char *tasks = g_strdup_printf("/proc/%d/task", pid);
    g_autoptr(GDir) dir = g_dir_open(tasks, 0, NULL);
    const char *task;
    while (dir && (task = g_dir_read_name(dir)) && pids->len < PROCESSES_MAX) {
        g_autofree char *path = g_build_filename(tasks, task, "children", NULL);
        g_autofree char *text = NULL;
        if (!g_file_get_contents(path, &text, NULL, NULL))
            continue;
        g_auto(GStrv) words = g_strsplit(g_strstrip(text), " ", -1);
        for (char **word = words; *word && **word; word++) {
            pid_t child = (pid_t)g_ascii_strtoll(*word, NULL, 10);
            g_array_append_val(pids, child);
            add_children(pids, child);
        }
    }
}

static GArray *tree_of(pid_t pid)
{
    GArray *pids = g_array_new(FALSE, FALSE, sizeof(pid_t));
    g_array_append_val(pids, pid);
    add_children(pids, pid);
    return pids;
}

/* State letter of /proc/<pid>/stat (proc(5)); 0: it is gone. */
static char state_of(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/stat", pid);
    g_autofree char *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return 0;
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' ? end[2] : 0;
}

static bool stands(char state)
{
    return state == 0 || state == 'T' || state == 't' || state == 'Z' || state == 'X';
}

bool sp_fake_is_stopped(pid_t pid)
{
    return state_of(pid) == 'T';
}

bool sp_fake_stop(pid_t pid, GError **error)
{
    int64_t deadline = sp_time_monotonic_ms() + STOP_MS;
    for (;;) {
        bool all = true;
        g_autoptr(GArray) pids = tree_of(pid);
        for (guint i = 0; i < pids->len; i++) {
            pid_t each = g_array_index(pids, pid_t, i);
            char state = state_of(each);
            if (stands(state))
                continue;
            kill(each, SIGSTOP); /* ESRCH: it has ended */
            /* D: it waits for a child that stands still between vfork and exec; it stops behind that. */
            all = all && state == 'D';
        }
        if (all)
            return true;
        if (sp_time_monotonic_ms() >= deadline)
            break;
        g_usleep(1000);
    }
    g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "not all processes stand still");
    sp_fake_continue(pid, NULL);
    return false;
}

bool sp_fake_continue(pid_t pid, GError **error)
{
    g_autoptr(GArray) pids = tree_of(pid);
    for (guint i = pids->len; i-- > 0;) {
        if (kill(g_array_index(pids, pid_t, i), SIGCONT) < 0 && i == 0) {
            sp_error_set_errno(error, SP_ERROR_UNAVAILABLE, errno, "continuing the agent");
            return false;
        }
    }
    return true;
}

static pid_t pid_of(struct sp_instance *instance, GError **error)
{
    struct sp_record record = {0};
    if (!sp_record_load(((struct fake *)instance)->run_dir, &record, error))
        return 0;
    pid_t pid = record.pid;
    int pidfd = sp_record_open_process(&record, error);
    sp_record_clear(&record);
    if (pidfd < 0)
        return 0;
    close(pidfd);
    return pid;
}

bool sp_fake_pause(struct sp_instance *instance, GError **error)
{
    pid_t pid = pid_of(instance, error);
    return pid > 0 && sp_fake_stop(pid, error);
}

bool sp_fake_resume(struct sp_instance *instance, GError **error)
{
    pid_t pid = pid_of(instance, error);
    return pid > 0 && sp_fake_continue(pid, error);
}
