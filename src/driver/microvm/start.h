/* A VMM of a sandbox that waits to be told more: what create() and prestart() have in common. */
#pragma once

#include "driver/microvm/qmp_client.h"
#include "driver/microvm/source.h"
#include "driver/record.h"

struct sp_vm_start {
    struct sp_record record; /* as it is in run_dir */
    char *run_dir;
    struct sp_cgroup *cgroup;
    struct sp_qmp *qmp;
    int rw_fd, pidfd;
};

void sp_vm_start_init(struct sp_vm_start *start, const char *run_dir);
void sp_vm_start_clear(struct sp_vm_start *start); /* the handles only */

/* Writes the intent: all that destroy() needs. facts->name is set. */
bool sp_vm_start_record(struct sp_vm_start *start, const struct sp_driver_spec *spec,
                        const struct sp_vm_facts *facts, GError **error);
/* Makes control group and process; the disk is there. */
bool sp_vm_start_process(struct sp_microvm *vm, const struct sp_vm_source *source,
                         const char *template_dir, struct sp_vm_start *start, GError **error);
/* Waits until QEMU answers. */
bool sp_vm_start_greet(struct sp_vm_start *start, GError **error);
/* Sets the limits of the control group; cpus = 0: none yet. */
bool sp_vm_start_limit(const struct sp_vm_start *start, const struct sp_vm_facts *facts,
                       double cpus, GError **error);
