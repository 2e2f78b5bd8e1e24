/* What the files of this driver share. */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/driver.h"
#include "driver/microvm/argv.h"
#include "driver/microvm/boot_key.h"
#include "driver/microvm/guest.h"
#include "os/cgroup.h"

/* How VMs run here; found by trial (accel.c). */
struct sp_vm_host {
    gatomicrefcount refs;
    enum sp_accel accel;
    char *detail; /* "kvm", or "tcg" and why */
    char *qemu_version;
    char *host_cpu; /* part of the boot key */
    unsigned tsc_khz;
    char *kvm_node; /* KVM only */
};

struct sp_microvm {
    struct sp_driver base;
    const struct sp_driver_env *env; /* borrowed */
    struct sp_cgroups *cgroups;
    char *qemu_path; /* NULL: not installed */
    bool untracked;  /* VMs are started without the library that write tracking needs: for tests */

    /* Held while these two are first made (a trial takes seconds). Taken alone. */
    GMutex host_lock;
    struct sp_guest *guest;
    struct sp_vm_host *host;

    GMutex images_lock; /* the table only; before rams_lock */
    GHashTable *images; /* path → struct sp_boot_image *, see boot_store.h */

    GMutex rams_lock; /* the table and all counts; nothing is taken under it */
    GHashTable *rams; /* key → struct sp_ram *, without a reference: see ram.h */

    GMutex copies_lock;    /* before rams_lock */
    GHashTable *copies;    /* directory of a saved form → its whole RAM, see copies.h */
    uint64_t copies_clock; /* counts their uses */

    GMutex prestarted_lock; /* taken alone */
    GPtrArray *prestarted;  /* see prestart.h */
};

/* A reference to the guest's files as they are now. */
struct sp_guest *sp_microvm_guest(struct sp_microvm *vm, GError **error);
/* A reference to how VMs run here; tries it out if that is not known yet (20 s). */
struct sp_vm_host *sp_microvm_host(struct sp_microvm *vm, GError **error);

void sp_vm_host_unref(struct sp_vm_host *host);
