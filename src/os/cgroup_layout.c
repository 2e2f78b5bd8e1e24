/* Which cgroup hierarchies this host has, and the installation's own group in each. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "os/cgroup_private.h"

bool sp_cgroup_write(const struct sp_cgroups *cgroups, const char *dir, const char *file,
                     const char *text, bool optional, GError **error)
{
    g_autofree char *path = g_build_filename(dir, file, NULL);
    /* A real control file exists already; O_CREAT would be refused with a misleading EACCES. */
    int flags = O_WRONLY | O_CLOEXEC | (cgroups->fake ? O_CREAT | O_TRUNC : 0);
    int fd = open(path, flags, 0600);
    int err = fd < 0 ? errno : 0;
    if (fd >= 0) {
        size_t len = strlen(text);
        if (write(fd, text, len) != (ssize_t)len)
            err = errno;
        close(fd);
    }
    if (!err || (optional && err == ENOENT))
        return true;
    sp_error_set_errno(error, err == ENOENT ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, err,
                       "write \"%s\" to %s", text, path);
    return false;
}

char *sp_cgroup_read(const char *dir, const char *file, GError **error)
{
    g_autofree char *path = g_build_filename(dir, file, NULL);
    g_autofree char *text = NULL;
    GError *cause = NULL;
    if (g_file_get_contents(path, &text, NULL, &cause))
        return g_steal_pointer(&text);
    bool missing = g_error_matches(cause, G_FILE_ERROR, G_FILE_ERROR_NOENT) ||
                   g_error_matches(cause, G_FILE_ERROR, G_FILE_ERROR_NODEV);
    g_set_error(error, SP_ERROR, missing ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, "%s",
                cause->message);
    g_error_free(cause);
    return NULL;
}

int64_t sp_cgroup_read_number(const char *dir, const char *file, const char *key, int64_t fallback)
{
    g_autofree char *text = sp_cgroup_read(dir, file, NULL);
    size_t len = key ? strlen(key) : 0;
    const char *at = text;
    while (at && key && !(strncmp(at, key, len) == 0 && at[len] == ' ')) {
        at = strchr(at, '\n');
        at = at ? at + 1 : NULL;
    }
    if (!at)
        return fallback;
    at += key ? len + 1 : 0;
    char *end;
    int64_t value = g_ascii_strtoll(at, &end, 10);
    return end == at ? fallback : value;
}

bool sp_cgroup_has_word(const char *text, const char *word)
{
    g_auto(GStrv) words = g_strsplit_set(text, " \n", -1);
    return g_strv_contains((const char *const *)words, word);
}

/* A hierarchy of `mount` with its links resolved (on many hosts "cpu" is a link to "cpu,cpuacct"),
 * when it is a cgroup file system. */
static char *find_hierarchy(const char *mount, const char *name, bool fake, __fsword_t magic)
{
    g_autofree char *path = *name ? g_build_filename(mount, name, NULL) : g_strdup(mount);
    g_autofree char *procs = g_build_filename(path, "cgroup.procs", NULL);
    struct statfs fs;
    if (access(procs, F_OK) < 0 || (!fake && (statfs(path, &fs) < 0 || fs.f_type != magic)))
        return NULL;
    char *resolved = realpath(path, NULL);
    char *ret = g_strdup(resolved ? resolved : path);
    free(resolved);
    return ret;
}

static void add_hierarchy(struct sp_cgroups *cgroups, const char *path)
{
    for (unsigned i = 0; i < cgroups->n_hierarchies; i++)
        if (g_str_equal(cgroups->hierarchies[i], path))
            return;
    g_assert(cgroups->n_hierarchies < SP_CGROUP_MAX_ATTACH);
    cgroups->hierarchies[cgroups->n_hierarchies++] = path;
}

static bool detect_v2(struct sp_cgroups *cgroups, const char *mount, GError **error)
{
    g_autofree char *controllers = sp_cgroup_read(mount, "cgroup.controllers", error);
    if (!controllers)
        return false;
    for (const char *const *c = (const char *const[]){"memory", "pids", "cpu", NULL}; *c; c++) {
        if (!sp_cgroup_has_word(controllers, *c)) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                        "cgroup v2 at %s has no %s controller (it has: %s)", mount, *c,
                        g_strchomp(controllers));
            return false;
        }
    }
    cgroups->kind = SP_CGROUP_V2;
    add_hierarchy(cgroups, cgroups->v2);
    return true;
}

static bool detect_v1(struct sp_cgroups *cgroups, const char *mount, GError **error)
{
    bool fake = cgroups->fake;
    struct {
        const char *name;
        char **ret;
        bool needed;
    } rows[] = {{"memory", &cgroups->memory, true},
                {"pids", &cgroups->pids, true},
                {"cpu", &cgroups->cpu, true},
                {"cpuacct", &cgroups->cpuacct, !cgroups->v2},
                {"freezer", &cgroups->freezer, !cgroups->v2}};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        if (!rows[i].needed)
            continue;
        *rows[i].ret = find_hierarchy(mount, rows[i].name, fake, CGROUP_SUPER_MAGIC);
        if (!*rows[i].ret) {
            g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                        "no cgroup controller \"%s\" is mounted below %s", rows[i].name, mount);
            return false;
        }
        add_hierarchy(cgroups, *rows[i].ret);
    }
    cgroups->kind = cgroups->v2 ? SP_CGROUP_HYBRID : SP_CGROUP_V1;
    if (cgroups->v2)
        add_hierarchy(cgroups, cgroups->v2);
    return true;
}

static struct sp_cgroups *open_layout(const char *mount, const char *root, bool fake,
                                      GError **error)
{
    g_assert(*root && *root != '.' && !strchr(root, '/'));
    struct sp_cgroups *cgroups = g_new0(struct sp_cgroups, 1);
    cgroups->fake = fake;
    cgroups->root = g_strdup(root);
    g_autofree char *controllers = g_build_filename(mount, "cgroup.controllers", NULL);
    bool pure = access(controllers, F_OK) == 0;
    cgroups->v2 = find_hierarchy(mount, pure ? "" : "unified", fake, CGROUP2_SUPER_MAGIC);
    if (pure ? detect_v2(cgroups, mount, error) : detect_v1(cgroups, mount, error))
        return cgroups;
    sp_cgroups_free(cgroups);
    return NULL;
}

struct sp_cgroups *sp_cgroups_open(const char *mount_point, const char *root, GError **error)
{
    return open_layout(mount_point ? mount_point : "/sys/fs/cgroup", root, false, error);
}

struct sp_cgroups *sp_cgroups_open_fake(const char *folder, const char *root, GError **error)
{
    return open_layout(folder, root, true, error);
}

void sp_cgroups_free(struct sp_cgroups *cgroups)
{
    if (!cgroups)
        return;
    g_free(cgroups->root);
    g_free(cgroups->v2);
    g_free(cgroups->memory);
    g_free(cgroups->pids);
    g_free(cgroups->cpu);
    g_free(cgroups->cpuacct);
    g_free(cgroups->freezer);
    g_free(cgroups);
}

enum sp_cgroup_kind sp_cgroups_kind(const struct sp_cgroups *cgroups)
{
    return cgroups->kind;
}

const char *sp_cgroups_kind_name(const struct sp_cgroups *cgroups)
{
    static const char *const names[] = {"cgroup v2", "cgroup v1 and v2", "cgroup v1"};
    return names[cgroups->kind];
}

/* Removes what is below dir (directories; in a fake, the files too). */
static bool remove_below(const struct sp_cgroups *cgroups, const char *dir, int64_t until_ms,
                         GError **error)
{
    DIR *stream = opendir(dir);
    if (!stream)
        return true; /* rmdir() will say why */
    bool ok = true;
    struct dirent *e;
    while (ok && (e = readdir(stream))) {
        g_autofree char *path = g_build_filename(dir, e->d_name, NULL);
        if (e->d_type == DT_DIR && e->d_name[0] != '.')
            ok = sp_cgroup_remove_dir(cgroups, path, until_ms, error);
        else if (cgroups->fake && e->d_type == DT_REG)
            unlink(path);
    }
    closedir(stream);
    return ok;
}

bool sp_cgroup_remove_dir(const struct sp_cgroups *cgroups, const char *dir, int64_t until_ms,
                          GError **error)
{
    for (;;) {
        if ((!cgroups->fake && rmdir(dir) == 0) || (access(dir, F_OK) < 0 && errno == ENOENT))
            return true;
        if (!remove_below(cgroups, dir, until_ms, error))
            return false;
        if (rmdir(dir) == 0 || errno == ENOENT)
            return true;
        /* A group stays busy for a moment after its last process was reaped; there is no event. */
        if (errno != EBUSY || sp_time_monotonic_ms() >= until_ms) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove cgroup %s", dir);
            return false;
        }
        poll(NULL, 0, 2);
    }
}

bool sp_cgroups_remove_root(struct sp_cgroups *cgroups, GError **error)
{
    for (unsigned i = 0; i < cgroups->n_hierarchies; i++) {
        g_autofree char *dir = g_build_filename(cgroups->hierarchies[i], cgroups->root, NULL);
        if (cgroups->fake) {
            g_autofree char *file = g_build_filename(dir, "cgroup.subtree_control", NULL);
            unlink(file);
        }
        if (rmdir(dir) < 0 && errno != ENOENT) {
            sp_error_set_errno(error, SP_ERROR_FAILED_PRECONDITION, errno, "remove cgroup %s", dir);
            return false;
        }
    }
    return true;
}

char **sp_cgroups_list(const struct sp_cgroups *cgroups)
{
    g_autoptr(GHashTable) names = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    for (unsigned i = 0; i < cgroups->n_hierarchies; i++) {
        g_autofree char *dir = g_build_filename(cgroups->hierarchies[i], cgroups->root, NULL);
        DIR *stream = opendir(dir);
        struct dirent *e;
        while (stream && (e = readdir(stream)))
            if (e->d_type == DT_DIR && e->d_name[0] != '.')
                g_hash_table_add(names, g_strdup(e->d_name));
        if (stream)
            closedir(stream);
    }
    guint n = 0;
    char **keys = (char **)g_hash_table_get_keys_as_array(names, &n);
    g_hash_table_steal_all(names);
    return keys; /* NULL-terminated array; the strings are the caller's now */
}
