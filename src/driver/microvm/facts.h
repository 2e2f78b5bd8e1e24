/* What the record of a VM holds beside the common part: all that saving and removing it needs. */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/ids.h"
#include "driver/driver.h"
#include "driver/microvm/argv.h"
#include "driver/microvm/boot_key.h"
#include "driver/record.h"

struct sp_vm_facts {
    char *name; /* owned; of its disk and links in layers/ */
    enum sp_accel accel;
    struct sp_shape shape;
    unsigned vcpus;
    char kernel_sha256[SP_HASH_HEX], initramfs_sha256[SP_HASH_HEX]; /* that run in the guest */
    /* The base of its RAM: <name>.memory as sp_memory_copy() counts it; "": none, zeros. */
    char base_sha256[SP_HASH_HEX];
    int64_t base_data_bytes;
    bool has_delta; /* its map is of base and <name>.delta: a copy of a saved form */
};

/* Into record->extra, which is made if need be. */
void sp_vm_facts_store(const struct sp_vm_facts *facts, struct sp_record *record);
/* Of a record of this tier. A record of an older version gives what it has: a name, no sizes. */
void sp_vm_facts_load(const struct sp_record *record, struct sp_vm_facts *ret);
void sp_vm_facts_clear(struct sp_vm_facts *facts);
