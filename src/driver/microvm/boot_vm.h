/*
 * A VM that is booted from the kernel: for the making of a boot image, and to try out an
 * accelerator.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/microvm/boot_talk.h"
#include "driver/microvm/private.h"
#include "driver/microvm/qmp_client.h"

struct sp_boot_vm_spec {
    const char
        *name; /* of its cgroup; what is left of an earlier one of this name is killed first */
    const char *dir; /* for sockets and log; borrowed while the VM lives */
    enum sp_accel accel;
    const char *kvm_node;
    unsigned tsc_khz;
    const struct sp_guest *guest;
    int64_t memory_mb;
    unsigned vcpus;
    int root_fd, rw_fd;
    int64_t boot_timeout_ms;
};

struct sp_boot_vm {
    struct sp_cgroup *cgroup;
    const char *dir;
    int memory_fd; /* unsealed memfd with all of the guest's RAM */
    int pidfd;
    struct sp_qmp *qmp;
    struct sp_boot_talk *talk; /* after HELLO_OK */
};

/* Boots until the agent answers. On failure nothing is left but the files in dir. */
bool sp_boot_vm_start(struct sp_microvm *vm, const struct sp_boot_vm_spec *spec,
                      struct sp_boot_vm *ret, GError **error);
/* Stops the guest and writes the state of its devices into state_fd, which must be O_WRONLY. RAM is
 * in memory_fd and the disks in their files: all three are of the same instant. */
bool sp_boot_vm_save(struct sp_boot_vm *boot, int state_fd, GError **error);
/* Kills the VMM and waits for its end; keeps memory_fd. */
bool sp_boot_vm_kill(struct sp_boot_vm *boot, GError **error);
/* Kills and releases all. */
void sp_boot_vm_clear(struct sp_boot_vm *boot);
