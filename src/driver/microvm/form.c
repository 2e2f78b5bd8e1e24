#include "driver/microvm/form.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "driver/microvm/delta.h"
#include "driver/microvm/memory.h"
#include "os/cleanup.h"

#define MIB INT64_C(1048576)

#define TEXT(field, most)                                                                          \
    {                                                                                              \
        .name = #field, .kind = SP_JSON_STRING, .required = true, .max = (most),                   \
        .offset = offsetof(struct sp_form_machine, field)                                          \
    }
#define NUMBER(field)                                                                              \
    {                                                                                              \
        .name = #field, .kind = SP_JSON_INT, .required = true, .max = 1e9,                         \
        .offset = offsetof(struct sp_form_machine, field)                                          \
    }

static const struct sp_json_field fields[] = {
    NUMBER(machine),
    TEXT(qemu_version, 200),
    TEXT(accel, 16),
    TEXT(cpu, 200),
    TEXT(host_cpu, 4096),
    NUMBER(tsc_mhz),
    NUMBER(vcpus),
    TEXT(kernel_sha256, 64),
    TEXT(initramfs_sha256, 64),
    {0},
};

static int64_t tsc_mhz_of(const struct sp_vm_host *host)
{
    return (host->tsc_khz + 500) / 1000;
}

json_t *sp_form_machine_json(const struct sp_vm_host *host, const char *qemu_version,
                             const struct sp_vm_facts *facts)
{
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:I, s:i, s:s, s:s}", "machine", SP_VM_MACHINE,
                     "qemu_version", qemu_version, "accel", sp_accel_name(facts->accel), "cpu",
                     sp_qemu_cpu(facts->accel), "host_cpu", host->host_cpu, "tsc_mhz",
                     (json_int_t)tsc_mhz_of(host), "vcpus", (int)facts->vcpus, "kernel_sha256",
                     facts->kernel_sha256, "initramfs_sha256", facts->initramfs_sha256);
}

static bool damaged(const struct sp_form *form, const char *what, GError **error)
{
    g_autofree char *name = g_path_get_basename(form->dir);
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "saved form %s is damaged: %s", name,
                what);
    return false;
}

/* Files of sizes that the rest relies on. */
static bool check_files(const struct sp_form *form, GError **error)
{
    const struct sp_saved_manifest *m = &form->manifest;
    const struct {
        const char *name;
        bool required;
        int64_t size_bytes; /* -1: any */
    } files[] = {
        {SP_FORM_DISK, true, m->disk_mb * MIB},
        {SP_FORM_DELTA, m->memory, m->memory_mb * MIB},
        {SP_FORM_MAP, m->memory, (m->memory_mb * MIB / SP_PAGE_BYTES + 7) / 8},
        {SP_FORM_STATE, m->memory, -1},
        {SP_FORM_BASE, false, m->memory_mb * MIB},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(files); i++) {
        const struct sp_saved_file *file = sp_saved_manifest_file(m, files[i].name);
        if ((!file && files[i].required) ||
            (file && files[i].size_bytes >= 0 && file->size_bytes != files[i].size_bytes))
            return damaged(form, files[i].name, error);
    }
    return true;
}

static bool decode(struct sp_form *form, GError **error)
{
    g_autoptr(GError) cause = NULL;
    if (strcmp(form->manifest.tier, "microvm") != 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "the saved form is of the tier %s, not microvm", form->manifest.tier);
        return false;
    }
    if (!form->manifest.machine ||
        !sp_json_decode(form->manifest.machine, fields, &form->machine, &cause))
        return damaged(form, cause ? cause->message : "machine", error);
    return check_files(form, error);
}

bool sp_form_load(const char *dir, struct sp_form *ret, GError **error)
{
    struct sp_form form = {0};
    if (!sp_saved_load(dir, &form.manifest, error))
        return false;
    form.dir = g_strdup(dir);
    if (!decode(&form, error)) {
        sp_form_clear(&form);
        return false;
    }
    *ret = form;
    return true;
}

void sp_form_clear(struct sp_form *form)
{
    g_clear_pointer(&form->dir, g_free);
    sp_saved_manifest_clear(&form->manifest);
    sp_json_clear(fields, &form->machine);
}

static bool differs(const char *what, const char *saved, const char *here, GError **error)
{
    if (strcmp(saved, here) == 0)
        return false;
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                "the memory was saved with %s \"%s\", here is \"%s\"", what, saved, here);
    return true;
}

bool sp_form_check(const struct sp_form *form, const struct sp_vm_host *host, GError **error)
{
    const struct sp_form_machine *m = &form->machine;
    const char *accel = sp_accel_name(host->accel);
    if (!form->manifest.memory) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "the form has no memory");
        return false;
    }
    if (m->machine != SP_VM_MACHINE) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "the memory was saved with machine %" G_GINT64_FORMAT ", here is %d",
                    m->machine, SP_VM_MACHINE);
        return false;
    }
    if (differs("QEMU", m->qemu_version, host->qemu_version, error) ||
        differs("accelerator", m->accel, accel, error) ||
        differs("CPU", m->cpu, sp_qemu_cpu(host->accel), error) ||
        differs("host CPU", m->host_cpu, host->host_cpu, error))
        return false;
    /* Two measurements may fall on both sides of a half. */
    if (ABS(m->tsc_mhz - tsc_mhz_of(host)) <= 1)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                "the memory was saved with a clock of %" G_GINT64_FORMAT
                " MHz, here is %" G_GINT64_FORMAT,
                m->tsc_mhz, tsc_mhz_of(host));
    return false;
}

int sp_form_open(const struct sp_form *form, const char *name, GError **error)
{
    g_autofree char *path = g_build_filename(form->dir, name, NULL);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
    return fd;
}

bool sp_form_compare(const struct sp_form *form, const char *name,
                     const struct sp_memory_copied *seen, GError **error)
{
    const struct sp_saved_file *file = sp_saved_manifest_file(&form->manifest, name);
    if (file && seen->size_bytes == file->size_bytes &&
        (!*file->sha256 || strcmp(seen->sha256, file->sha256) == 0))
        return true;
    return damaged(form, name, error);
}

bool sp_form_verify(const struct sp_form *form, const char *name, GError **error)
{
    struct sp_memory_copied seen;
    SP_CLEANUP(sp_close_fdp) int fd = sp_form_open(form, name, error);
    if (fd < 0)
        return false;
    g_autoptr(GError) cause = NULL;
    /* What cannot be read is damaged too: so says a file system that keeps checksums. */
    if (!sp_memory_copy(fd, -1, &seen, &cause))
        return damaged(form, cause->message, error);
    return sp_form_compare(form, name, &seen, error);
}
