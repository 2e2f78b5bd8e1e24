/* CRIU restores processes into the group that it runs in itself. The agent keeps each session in a
 * group below (docs/agent-protocol.md §7); this puts them back. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/container/criu.h"

#define GROUP "groups"
#define FREEZE_MS 2000

/* Names that the agent gives: "s" and a number. */
static bool is_session(const char *name)
{
    size_t digits = strspn(name + 1, "0123456789");
    return name[0] == 's' && digits > 0 && digits < 20 && name[1 + digits] == '\0';
}

/* The number of a process in its own pid namespace, 0 when it is gone: proc_pid_status(5), NSpid.
 * *ret_parent: its parent's number here. */
static int inner_pid(int pid, int *ret_parent)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/status", pid);
    g_autofree char *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return 0;
    const char *parent = strstr(text, "\nPPid:");
    const char *line = strstr(text, "\nNSpid:");
    if (!line || !parent)
        return 0;
    if (ret_parent)
        *ret_parent = (int)g_ascii_strtoll(parent + strlen("\nPPid:"), NULL, 10);
    const char *end = strchr(line + 1, '\n');
    g_autofree char *numbers = g_strndup(line, end ? (gsize)(end - line) : strlen(line));
    const char *last = strrchr(numbers, '\t');
    return last ? (int)g_ascii_strtoll(last + 1, NULL, 10) : 0;
}

/* Process ids of a group, of GINT; NULL when it cannot be read. */
static GArray *list_pids(const char *dir)
{
    g_autofree char *path = g_build_filename(dir, "cgroup.procs", NULL);
    g_autofree char *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return NULL;
    GArray *pids = g_array_new(FALSE, FALSE, sizeof(int));
    for (const char *at = text; *at;) {
        char *end;
        int pid = (int)g_ascii_strtoll(at, &end, 10);
        if (end == at)
            break;
        if (pid > 0)
            g_array_append_val(pids, pid);
        at = *end ? end + 1 : end;
    }
    return pids;
}

bool sp_criu_groups_note(const struct sp_cgroup *cgroup, GKeyFile *facts, GError **error)
{
    g_autofree char *top = sp_cgroup_freezer_dir(cgroup);
    DIR *dir = opendir(top);
    if (!dir) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", top);
        return false;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_type != DT_DIR || !is_session(e->d_name))
            continue;
        g_autofree char *path = g_build_filename(top, e->d_name, NULL);
        g_autoptr(GArray) pids = list_pids(path);
        g_autoptr(GArray) inside = g_array_new(FALSE, FALSE, sizeof(int));
        for (guint i = 0; pids && i < pids->len; i++) {
            int number = inner_pid(g_array_index(pids, int, i), NULL);
            if (number > 0)
                g_array_append_val(inside, number);
        }
        g_key_file_set_integer_list(facts, GROUP, e->d_name, (int *)(void *)inside->data,
                                    inside->len);
    }
    closedir(dir);
    return true;
}

static bool chown_all(const char *path, uint32_t uid)
{
    DIR *dir = opendir(path);
    bool ok = dir && fchown(dirfd(dir), uid, uid) == 0;
    for (struct dirent *e; ok && (e = readdir(dir));)
        if (e->d_type == DT_REG)
            ok = fchownat(dirfd(dir), e->d_name, uid, uid, AT_SYMLINK_NOFOLLOW) == 0;
    int saved = errno;
    if (dir)
        closedir(dir);
    errno = saved;
    return ok;
}

static bool move(const char *dir, int pid)
{
    g_autofree char *path = g_build_filename(dir, "cgroup.procs", NULL);
    char text[16];
    g_snprintf(text, sizeof text, "%d", pid);
    SP_CLEANUP(sp_close_fdp) int fd = open(path, O_WRONLY | O_CLOEXEC);
    /* ESRCH: it has ended meanwhile. */
    return fd >= 0 && (write(fd, text, strlen(text)) > 0 || errno == ESRCH);
}

/* Makes the groups as the agent would have; inner pid → name of its group (borrowed from facts'
 * list, which ret_names owns). */
static GHashTable *make_groups(const char *top, GKeyFile *facts, uint32_t uid, char **names)
{
    GHashTable *group_of = g_hash_table_new(NULL, NULL);
    for (char **name = names; *name; name++) {
        g_autofree char *path = g_build_filename(top, *name, NULL);
        if (!is_session(*name) || mkdir(path, 0755) < 0 || !chown_all(path, uid)) {
            g_hash_table_destroy(group_of);
            return NULL;
        }
        gsize n = 0;
        g_autofree int *pids = g_key_file_get_integer_list(facts, GROUP, *name, &n, NULL);
        for (gsize i = 0; i < n; i++)
            g_hash_table_insert(group_of, GINT_TO_POINTER(pids[i]), *name);
    }
    return group_of;
}

/* A process that a restored one has made since then goes where its parent is. */
static bool distribute(const char *top, GHashTable *group_of)
{
    g_autoptr(GArray) pids = list_pids(top);
    g_autoptr(GHashTable) placed = g_hash_table_new(NULL, NULL); /* pid here → group */
    for (guint i = 0; pids && i < pids->len; i++) {
        int pid = g_array_index(pids, int, i), parent = 0;
        int inside = inner_pid(pid, &parent);
        const char *name = g_hash_table_lookup(group_of, GINT_TO_POINTER(inside));
        if (!name)
            name = g_hash_table_lookup(placed, GINT_TO_POINTER(parent));
        if (!inside || !name)
            continue;
        g_autofree char *path = g_build_filename(top, name, NULL);
        if (!move(path, pid))
            return false;
        g_hash_table_insert(placed, GINT_TO_POINTER(pid), (gpointer)name);
    }
    return pids != NULL;
}

bool sp_criu_groups_restore(struct sp_cgroup *cgroup, GKeyFile *facts, uint32_t uid, GError **error)
{
    g_auto(GStrv) names = g_key_file_get_keys(facts, GROUP, NULL, NULL);
    if (!names)
        return true;
    g_autofree char *top = sp_cgroup_freezer_dir(cgroup);
    if (!sp_cgroup_freeze(cgroup, true, FREEZE_MS, error))
        return false;
    GHashTable *group_of = make_groups(top, facts, uid, names);
    bool ok = group_of && distribute(top, group_of);
    if (!ok)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "the agent's groups in %s", top);
    if (group_of)
        g_hash_table_destroy(group_of);
    return sp_cgroup_freeze(cgroup, false, FREEZE_MS, ok ? error : NULL) && ok;
}
