#include "driver/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/limits.h"
#include "os/pidfd.h"

#define GROUP "instance"

void sp_record_clear(struct sp_record *record)
{
    g_free(record->id);
    g_free(record->tier);
    g_free(record->template_digest);
    g_free(record->boot_id);
    g_free(record->cgroup);
    if (record->extra)
        g_key_file_free(record->extra);
    memset(record, 0, sizeof *record);
}

static char *boot_id(GError **error)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents("/proc/sys/kernel/random/boot_id", &text, NULL, error))
        return NULL;
    g_strchomp(text);
    return g_steal_pointer(&text);
}

static bool decode(GKeyFile *file, struct sp_record *r, GError **error)
{
    r->id = g_key_file_get_string(file, GROUP, "id", error);
    r->tier = r->id ? g_key_file_get_string(file, GROUP, "tier", error) : NULL;
    if (!r->tier)
        return false;
    r->template_digest = g_key_file_get_string(file, GROUP, "template_digest", NULL);
    r->boot_id = g_key_file_get_string(file, GROUP, "boot_id", NULL);
    r->cgroup = g_key_file_get_string(file, GROUP, "cgroup", NULL);
    GError *cause = NULL;
    guint64 slot = g_key_file_get_uint64(file, GROUP, "slot", &cause);
    if (cause) {
        g_propagate_error(error, cause);
        return false;
    }
    r->slot = (unsigned)slot;
    r->started = g_key_file_get_boolean(file, GROUP, "started", NULL);
    r->pid = (pid_t)g_key_file_get_integer(file, GROUP, "pid", NULL);
    r->pid_start_ticks = g_key_file_get_uint64(file, GROUP, "pid_start_ticks", NULL);
    /* Names of other things are made from these: never trust a damaged file with paths. */
    bool cgroup_ok = !r->cgroup || (*r->cgroup && *r->cgroup != '.' && !strchr(r->cgroup, '/'));
    if (sp_id_valid(r->id, "sbx") && cgroup_ok && slot < SP_SLOTS && r->pid >= 0)
        return true;
    g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL, "a value is out of range");
    return false;
}

bool sp_record_load(const char *run_dir, struct sp_record *ret, GError **error)
{
    g_autofree char *path = g_build_filename(run_dir, SP_RECORD_FILE, NULL);
    g_autoptr(GKeyFile) file = g_key_file_new();
    GError *cause = NULL;
    if (!g_key_file_load_from_file(file, path, G_KEY_FILE_NONE, &cause)) {
        bool missing = g_error_matches(cause, G_FILE_ERROR, G_FILE_ERROR_NOENT);
        g_set_error(error, SP_ERROR, missing ? SP_ERROR_NOT_FOUND : SP_ERROR_INTERNAL, "%s: %s",
                    path, cause->message);
        g_error_free(cause);
        return false;
    }
    struct sp_record record = {0};
    if (!decode(file, &record, &cause)) {
        sp_record_clear(&record);
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s: %s", path, cause->message);
        g_error_free(cause);
        return false;
    }
    g_key_file_remove_group(file, GROUP, NULL);
    record.extra = g_steal_pointer(&file);
    *ret = record;
    return true;
}

/* Everything of `from` goes into `to`. */
static void copy_groups(GKeyFile *from, GKeyFile *to)
{
    g_auto(GStrv) groups = g_key_file_get_groups(from, NULL);
    for (char **g = groups; *g; g++) {
        g_auto(GStrv) keys = g_key_file_get_keys(from, *g, NULL, NULL);
        for (char **k = keys; k && *k; k++) {
            g_autofree char *value = g_key_file_get_value(from, *g, *k, NULL);
            g_key_file_set_value(to, *g, *k, value);
        }
    }
}

/* write + rename, without fsync: the record has to outlive processes, not the machine (after a
 * reboot everything that it names but the disk is gone, and that is found by the sandbox's id). */
static bool replace(const char *path, const char *text, gsize len, GError **error)
{
    g_autofree char *temporary = g_strconcat(path, ".new", NULL);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && write(fd, text, len) == (ssize_t)len;
    int err = errno;
    if (fd >= 0)
        close(fd);
    if (ok) {
        ok = rename(temporary, path) == 0;
        err = errno;
    }
    if (!ok) {
        unlink(temporary);
        sp_error_set_errno(error, SP_ERROR_INTERNAL, err, "write %s", path);
    }
    return ok;
}

bool sp_record_save(const char *run_dir, const struct sp_record *record, GError **error)
{
    g_autofree char *path = g_build_filename(run_dir, SP_RECORD_FILE, NULL);
    g_autoptr(GKeyFile) file = g_key_file_new();
    g_key_file_set_string(file, GROUP, "id", record->id);
    g_key_file_set_string(file, GROUP, "tier", record->tier);
    if (record->template_digest)
        g_key_file_set_string(file, GROUP, "template_digest", record->template_digest);
    if (record->boot_id)
        g_key_file_set_string(file, GROUP, "boot_id", record->boot_id);
    if (record->cgroup)
        g_key_file_set_string(file, GROUP, "cgroup", record->cgroup);
    g_key_file_set_uint64(file, GROUP, "slot", record->slot);
    g_key_file_set_boolean(file, GROUP, "started", record->started);
    if (record->pid) {
        g_key_file_set_integer(file, GROUP, "pid", record->pid);
        g_key_file_set_uint64(file, GROUP, "pid_start_ticks", record->pid_start_ticks);
    }
    if (record->extra)
        copy_groups(record->extra, file);
    gsize len = 0;
    g_autofree char *text = g_key_file_to_data(file, &len, NULL);
    return replace(path, text, len, error);
}

bool sp_record_set_process(struct sp_record *record, pid_t pid, GError **error)
{
    g_autofree char *boot = boot_id(error);
    uint64_t ticks;
    if (!boot || !sp_process_start_ticks(pid, &ticks, error))
        return false;
    g_free(record->boot_id);
    record->boot_id = g_steal_pointer(&boot);
    record->pid = pid;
    record->pid_start_ticks = ticks;
    return true;
}

int sp_record_open_process(const struct sp_record *record, GError **error)
{
    g_autofree char *boot = boot_id(error);
    if (!boot)
        return -1;
    if (!record->pid || !record->boot_id || !g_str_equal(record->boot_id, boot)) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "%s does not run: %s", record->id,
                    record->pid ? "the host was restarted" : "it was never started");
        return -1;
    }
    /* The pidfd first: then the start time is read of the very process that the pidfd holds, or of
     * a later one (with a later start time), never the other way round. */
    int fd = sp_pidfd_open(record->pid, error);
    if (fd < 0)
        return -1;
    uint64_t ticks = 0;
    bool known = sp_process_start_ticks(record->pid, &ticks, error);
    if (known && ticks == record->pid_start_ticks && !sp_pidfd_wait(fd, 0))
        return fd;
    if (known)
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "%s does not run: process %d has ended",
                    record->id, (int)record->pid);
    close(fd);
    return -1;
}
