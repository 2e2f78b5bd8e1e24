/* Numbers that several layers must agree on. */
#pragma once

/* Each sandbox has a slot: a block of 65536 host uids/gids of its own (container: the map of its
 * user namespace; microVM: the VMM runs as the first one). Inside the range that systemd keeps for
 * containers (0x00080000–0x6FFFFFFF), so that no account of the host collides. */
#define SP_UID_FIRST 0x50000000u
#define SP_UID_BLOCK 0x10000u
#define SP_SLOTS 8192u
#define SP_SLOT_UID(slot) (SP_UID_FIRST + (slot)*SP_UID_BLOCK)

/* The unprivileged uid and gid of `space server` when `space up` runs as root. */
#define SP_SERVER_UID 0x4ffffff0u

/* The VMM that boots a template's kernel once to make a boot image; outside of all slots. */
#define SP_VM_BUILDER_UID 0x4fffffe0u
