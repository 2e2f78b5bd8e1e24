/*
 * The delta of a saved form: the pages in which a guest's RAM differs from its base.
 *
 * memory.delta has the size of the RAM and each page at its own place; memory.map has a bit for
 * each page: it is in the delta. A page of zeros may be a hole, so holes alone do not tell what is
 * in it. Bit n % 8 of byte n / 8 is page n.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/microvm/guest_ram.h"
#include "driver/microvm/memory.h"

struct sp_page_map {
    uint8_t *bits; /* owned */
    uint64_t pages;
};

void sp_page_map_init(struct sp_page_map *map, int64_t ram_bytes); /* no page is in it */
void sp_page_map_clear(struct sp_page_map *map);
size_t sp_page_map_bytes(const struct sp_page_map *map);
uint64_t sp_page_map_count(const struct sp_page_map *map);
void sp_page_map_add(struct sp_page_map *map, const struct sp_page_run *run);
void sp_page_map_add_all(struct sp_page_map *map, const struct sp_page_map *other); /* same size */
/* The first run of pages at or after `from` that are in the map, at most max_pages long; false:
 * none. */
bool sp_page_map_next(const struct sp_page_map *map, uint64_t from, uint64_t max_pages,
                      struct sp_page_run *ret);

bool sp_page_map_load(struct sp_page_map *map, int fd, int64_t ram_bytes, GError **error);
bool sp_page_map_store(const struct sp_page_map *map, int fd, GError **error);

/* Copies the guest's pages in runs into the delta and adds them to the map. over: the delta holds
 * data already (of a form that the VM was made from), so zeros have to be written too. */
bool sp_delta_capture(const struct sp_guest_ram *ram, const GArray *runs, int delta_fd, bool over,
                      struct sp_page_map *map, GError **error);

/* Writes the pages of a delta into the RAM of a VM that stands still … */
bool sp_delta_apply(const struct sp_page_map *map, int delta_fd, const struct sp_guest_ram *ram,
                    GError **error);
/* … or into a file: over: it holds something (the base, another delta), so zeros have to be written
 * too. */
bool sp_delta_apply_to_file(const struct sp_page_map *map, int delta_fd, int fd, bool over,
                            GError **error);
/* What sp_memory_copy() would say of a delta file that holds these pages of `fd`, and only these.
 */
bool sp_delta_digest(const struct sp_page_map *map, int fd, struct sp_memory_copied *ret,
                     GError **error);
