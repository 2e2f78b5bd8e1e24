/*
 * What a guest boots with: the kernel image and an initramfs made of the agent and the kernel's
 * modules.
 *
 * guest_dir holds vmlinux (an ELF with a PVH entry point), modules/order (one file name a line, in
 * the order of loading) and those files. Loaded once and again when a file has changed.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "base/ids.h"

struct sp_guest {
    gatomicrefcount refs;
    char *stamp;      /* which versions of the files were read */
    int kernel_fd;    /* vmlinux, read-only */
    int initramfs_fd; /* sealed memfd */
    char kernel_sha256[SP_HASH_HEX];
    char initramfs_sha256[SP_HASH_HEX];
};

/* SP_ERROR_UNSUPPORTED with the reason when something is missing. */
struct sp_guest *sp_guest_load(const char *guest_dir, const char *agent_path, GError **error);
struct sp_guest *sp_guest_ref(struct sp_guest *guest);
void sp_guest_unref(struct sp_guest *guest); /* NULL is fine */

/* Whether the files are still those that were read. */
bool sp_guest_is_current(const struct sp_guest *guest, const char *guest_dir,
                         const char *agent_path);
