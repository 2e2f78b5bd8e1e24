/* One saving of a VM under way; what save.c and save_finish.c share. */
#pragma once

#include "disk/saved.h"
#include "driver/microvm/delta.h"
#include "driver/microvm/form.h"
#include "driver/microvm/instance.h"
#include "driver/microvm/track.h"

enum phase {
    RECORD,
    SCAN,
    RESERVE,
    COPY_AHEAD,
    SYNC_DISK,
    STATE,
    PAGES,
    COPY_MEMORY,
    COPY_DISK,
    N_PHASES
};
struct vm_saving {
    struct sp_vm_instance *instance; /* borrowed */
    struct sp_microvm *vm;
    struct sp_save_spec spec;
    struct sp_record record;
    struct sp_vm_facts facts;
    struct sp_vm_host *host;
    struct sp_saved_staging *staging;
    struct sp_guest_ram ram;
    struct sp_page_map map;
    int delta_fd, state_fd;
    int64_t state_set; /* QEMU's fd set for state_fd; -1: none */
    /* Pages go into shadow_fd first, a memfd, so that the guest need not wait for the file system;
     * or straight into the delta: shadow_fd = -1. `whole`: the shadow began as what the VM maps, so
     * that in the end it is all of the guest's RAM, for copies of it to map. */
    int shadow_fd;
    bool whole;
    bool copied_ahead;                 /* pages were copied before, perhaps others than now */
    struct sp_page_map captured_pages; /* from the VM; `map` begins as that of an older delta */
    struct sp_tracker *tracker;        /* NULL: writes are not tracked */
    uint64_t rest_pages;               /* that were left for the pause */
    int64_t disk_data_bytes;
    bool captured;
    int64_t phase_us[N_PHASES];
    int64_t clock_us;
};

/* Opens a file of the form that is being made; -1 on failure. */
int sp_vm_saving_open(const struct vm_saving *s, const char *name, int flags, GError **error);

/* --- the memory (save_memory.c) --- */

/* Finds the RAM and how much of it is private, bytes. */
bool sp_vm_saving_look(struct vm_saving *s, int64_t *ret_private_bytes, GError **error);
/* Makes the files and the shadow. */
bool sp_vm_saving_prepare(struct vm_saving *s, int64_t private_bytes, GError **error);
/* Copies what can be copied while the guest runs. */
bool sp_vm_saving_copy_ahead(struct vm_saving *s, GError **error);
/* With the guest at rest: the pages that are still to be copied (free with g_array_unref()). */
GArray *sp_vm_saving_rest(struct vm_saving *s, GError **error);
/* Copies pages of the VM. */
bool sp_vm_saving_copy(struct vm_saving *s, const GArray *runs, GError **error);
