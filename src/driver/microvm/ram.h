/*
 * The sealed memfds that VMs map privately as their RAM, one for each content.
 *
 * A memfd lives as long as someone holds a reference to it or a VM maps it. What it holds is named
 * by its key, so a boot image and the saved forms of its VMs share one.
 */
#pragma once

#include "driver/microvm/private.h"

struct sp_ram {
    unsigned refs;         /* under rams_lock */
    struct sp_microvm *vm; /* borrowed */
    char *key;
    GMutex lock; /* held while it is filled: others who want the same wait. Taken alone. */
    int fd; /* sealed; -1 until it is filled. Fixed while one holds a reference from sp_ram_get() */
};

/* Writes the content into the empty memfd. */
typedef bool (*sp_ram_fill_fn)(int fd, void *user, GError **error);

/* The memfd with this key, filled by `fill` (NULL: it stays empty) unless it is there. Concurrent
 * callers wait; when one fails the next tries by itself. */
struct sp_ram *sp_ram_get(struct sp_microvm *vm, const char *key, int64_t size_bytes,
                          sp_ram_fill_fn fill, void *user, GError **error);
/* The same from a memfd that is full already, which is sealed and taken over. */
struct sp_ram *sp_ram_put(struct sp_microvm *vm, const char *key, int fd, GError **error);
struct sp_ram *sp_ram_ref(struct sp_ram *ram);
void sp_ram_unref(struct sp_ram *ram); /* NULL is fine */

/* Keys. Free with g_free(). */
char *sp_ram_key_of_file(const char *sha256); /* of a file that sp_memory_copy() has digested so */
char *sp_ram_key_empty(int64_t size_bytes);
