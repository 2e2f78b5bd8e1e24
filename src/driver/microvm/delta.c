#include "driver/microvm/delta.h"

#include <string.h>

#include "base/error.h"
#include "driver/microvm/digest.h"

#define CHUNK_BYTES (1024u * 1024u)
#define CHUNK_PAGES (CHUNK_BYTES / SP_PAGE_BYTES)

/* --- the map --- */

void sp_page_map_init(struct sp_page_map *map, int64_t ram_bytes)
{
    map->pages = (uint64_t)ram_bytes / SP_PAGE_BYTES;
    map->bits = g_malloc0(sp_page_map_bytes(map));
}

void sp_page_map_clear(struct sp_page_map *map)
{
    g_clear_pointer(&map->bits, g_free);
    map->pages = 0;
}

size_t sp_page_map_bytes(const struct sp_page_map *map)
{
    return (size_t)(map->pages + 7) / 8;
}

static bool is_in(const struct sp_page_map *map, uint64_t page)
{
    return map->bits[page / 8] >> page % 8 & 1;
}

uint64_t sp_page_map_count(const struct sp_page_map *map)
{
    uint64_t n = 0;
    for (size_t i = 0; i < sp_page_map_bytes(map); i++)
        n += (uint64_t)__builtin_popcount(map->bits[i]);
    return n;
}

void sp_page_map_add(struct sp_page_map *map, const struct sp_page_run *run)
{
    for (uint64_t page = run->first; page < run->first + run->count && page < map->pages; page++)
        map->bits[page / 8] = (uint8_t)(map->bits[page / 8] | 1u << page % 8);
}

void sp_page_map_add_all(struct sp_page_map *map, const struct sp_page_map *other)
{
    for (size_t i = 0; i < sp_page_map_bytes(map); i++)
        map->bits[i] |= other->bits[i];
}

bool sp_page_map_next(const struct sp_page_map *map, uint64_t from, uint64_t max_pages,
                      struct sp_page_run *ret)
{
    while (from < map->pages && !is_in(map, from))
        from += from % 8 == 0 && map->bits[from / 8] == 0 ? 8 : 1;
    if (from >= map->pages)
        return false;
    uint64_t end = from + 1;
    while (end < map->pages && end - from < max_pages && is_in(map, end))
        end++;
    *ret = (struct sp_page_run){from, end - from};
    return true;
}

bool sp_page_map_load(struct sp_page_map *map, int fd, int64_t ram_bytes, GError **error)
{
    struct sp_page_map loaded;
    sp_page_map_init(&loaded, ram_bytes);
    if (!sp_memory_read(fd, loaded.bits, sp_page_map_bytes(&loaded), 0, error)) {
        sp_page_map_clear(&loaded);
        return false;
    }
    *map = loaded;
    return true;
}

bool sp_page_map_store(const struct sp_page_map *map, int fd, GError **error)
{
    return sp_memory_write(fd, map->bits, sp_page_map_bytes(map), 0, error);
}

/* --- out of a VM --- */

/* One piece of the buffer. Zeros become holes unless something may lie under them. */
static bool write_piece(int fd, const uint8_t *bytes, const struct sp_page_run *piece, bool over,
                        GError **error)
{
    uint64_t start = 0;
    while (start < piece->count) {
        uint64_t end = start;
        while (end < piece->count &&
               (over || !sp_memory_is_zero(bytes + end * SP_PAGE_BYTES, SP_PAGE_BYTES)))
            end++;
        size_t len = (size_t)(end - start) * SP_PAGE_BYTES;
        if (len > 0 && !sp_memory_write(fd, bytes + start * SP_PAGE_BYTES, len,
                                        (int64_t)((piece->first + start) * SP_PAGE_BYTES), error))
            return false;
        start = end + 1;
    }
    return true;
}

static bool write_pieces(int fd, const uint8_t *bytes, const GArray *pieces, bool over,
                         struct sp_page_map *map, GError **error)
{
    for (guint i = 0; i < pieces->len; i++) {
        const struct sp_page_run *piece = &g_array_index(pieces, struct sp_page_run, i);
        if (!write_piece(fd, bytes, piece, over, error))
            return false;
        sp_page_map_add(map, piece);
        bytes += piece->count * SP_PAGE_BYTES;
    }
    return true;
}

bool sp_delta_capture(const struct sp_guest_ram *ram, const GArray *runs, int delta_fd, bool over,
                      struct sp_page_map *map, GError **error)
{
    g_autofree uint8_t *buffer = g_malloc(CHUNK_BYTES);
    g_autoptr(GArray) pieces = g_array_new(FALSE, FALSE, sizeof(struct sp_page_run));
    guint at = 0;
    uint64_t skip = 0;
    do {
        if (!sp_guest_ram_read(ram, runs, &at, &skip, buffer, CHUNK_BYTES, pieces, error) ||
            !write_pieces(delta_fd, buffer, pieces, over, map, error))
            return false;
    } while (pieces->len > 0);
    return true;
}

/* --- into a VM, a file, a hash --- */

struct sink {
    const struct sp_guest_ram *ram; /* or … */
    int fd;                         /* … or … */
    bool over;
    struct sp_memory_digest *digest;
};

static bool put(const struct sink *sink, const struct sp_page_run *run, const uint8_t *bytes,
                GError **error)
{
    size_t len = (size_t)run->count * SP_PAGE_BYTES;
    if (sink->ram)
        return sp_guest_ram_write(sink->ram, run->first, bytes, len, error);
    if (sink->digest) {
        sp_memory_digest_add(sink->digest, bytes, len, (int64_t)(run->first * SP_PAGE_BYTES));
        return true;
    }
    return write_piece(sink->fd, bytes, run, sink->over, error);
}

/* Pages of the map from first on and before end. */
static bool apply_part(const struct sp_page_map *map, uint64_t first, uint64_t end, int from,
                       const struct sink *sink, GError **error)
{
    g_autofree uint8_t *buffer = g_malloc(CHUNK_BYTES);
    struct sp_page_run run = {first, 0};
    while (sp_page_map_next(map, run.first + run.count, CHUNK_PAGES, &run) && run.first < end) {
        run.count = MIN(run.count, end - run.first);
        size_t len = (size_t)run.count * SP_PAGE_BYTES;
        if (!sp_memory_read(from, buffer, len, (int64_t)(run.first * SP_PAGE_BYTES), error) ||
            !put(sink, &run, buffer, error))
            return false;
    }
    return true;
}

static bool apply(const struct sp_page_map *map, int from, const struct sink *sink, GError **error)
{
    return apply_part(map, 0, map->pages, from, sink, error);
}

struct half {
    const struct sp_page_map *map;
    uint64_t first;
    int from;
    const struct sink *sink;
    GError *error;
    bool ok;
};

static void *apply_half(void *user)
{
    struct half *half = user;
    half->ok =
        apply_part(half->map, half->first, half->map->pages, half->from, half->sink, &half->error);
    return NULL;
}

/* The page up to which half of the pages are. */
static uint64_t middle(const struct sp_page_map *map)
{
    uint64_t left = sp_page_map_count(map) / 2;
    struct sp_page_run run = {0};
    while (left > 0 && sp_page_map_next(map, run.first + run.count, left, &run))
        left -= run.count;
    return run.first + run.count;
}

/* By two threads: nearly all of it is page faults of the VM, which is one process with one lock
 * that both may hold for reading. */
bool sp_delta_apply(const struct sp_page_map *map, int delta_fd, const struct sp_guest_ram *ram,
                    GError **error)
{
    struct sink sink = {.ram = ram, .fd = -1};
    struct half second = {map, middle(map), delta_fd, &sink, NULL, false};
    GThread *thread = g_thread_new("delta", apply_half, &second);
    bool ok = apply_part(map, 0, second.first, delta_fd, &sink, error);
    g_thread_join(thread);
    if (ok && !second.ok)
        g_propagate_error(error, g_steal_pointer(&second.error));
    g_clear_error(&second.error);
    return ok && second.ok;
}

bool sp_delta_apply_to_file(const struct sp_page_map *map, int delta_fd, int fd, bool over,
                            GError **error)
{
    struct sink sink = {.fd = fd, .over = over};
    return apply(map, delta_fd, &sink, error);
}

bool sp_delta_digest(const struct sp_page_map *map, int fd, struct sp_memory_copied *ret,
                     GError **error)
{
    struct sink sink = {.fd = -1, .digest = sp_memory_digest_new()};
    bool ok = apply(map, fd, &sink, error);
    sp_memory_digest_end(sink.digest, ok ? ret : NULL);
    if (ok)
        ret->size_bytes = (int64_t)map->pages * SP_PAGE_BYTES;
    return ok;
}
