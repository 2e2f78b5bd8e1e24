#include "driver/microvm/resources.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/clone.h"
#include "disk/volume.h"

char *sp_vm_file(const struct sp_microvm *vm, const char *name, const char *what)
{
    return g_strdup_printf("%s/layers/%s.%s", sp_volume_dir(vm->env->volume), name, what);
}

int sp_vm_file_open(const struct sp_microvm *vm, const char *name, const char *what, int flags,
                    GError **error)
{
    g_autofree char *path = sp_vm_file(vm, name, what);
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
    return fd;
}

bool sp_vm_file_link(const struct sp_microvm *vm, const char *name, const char *what,
                     const char *from, GError **error)
{
    g_autofree char *path = sp_vm_file(vm, name, what);
    if (link(from, path) == 0)
        return true;
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "link %s to %s", path, from);
    return false;
}

bool sp_vm_file_clone(const struct sp_microvm *vm, const char *name, const char *what,
                      const char *from, GError **error)
{
    g_autofree char *path = sp_vm_file(vm, name, what);
    return sp_file_clone(from, path, 0600, NULL, error);
}

bool sp_vm_files_remove(const struct sp_microvm *vm, const char *name, GError **error)
{
    static const char *const all[] = {SP_VM_DISK, SP_VM_BASE, SP_VM_DELTA, SP_VM_MAP};
    for (unsigned i = 0; i < G_N_ELEMENTS(all); i++) {
        g_autofree char *path = sp_vm_file(vm, name, all[i]);
        if (unlink(path) < 0 && errno != ENOENT) {
            sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove %s", path);
            return false;
        }
    }
    return true;
}
