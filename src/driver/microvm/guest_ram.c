#include "driver/microvm/guest_ram.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/error.h"
#include "os/cleanup.h"
#include "os/pidfd.h"

#define MAPS_MAX_LINES 8192
#define MEMFD_NAME "/memfd:space-vm" /* ram.c */
#define MAX_PIECES 256

/* linux/fs.h of Linux 6.7; the build host's headers may be older. */
struct page_region {
    uint64_t start, end, categories;
};
struct pm_scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PM_SCAN _IOWR('f', 16, struct pm_scan_arg)
#define PM_WP_MATCHING 1u
#define PM_CHECK_WPASYNC 2u
#define PM_IS_WRITTEN (1u << 1)
#define PM_IS_FILE (1u << 2)
#define PM_IS_PRESENT (1u << 3)
#define PM_IS_SWAPPED (1u << 4)
#define REGIONS 512

/* Bits of a pagemap entry (proc(5)). */
#define ENTRY_PRESENT (UINT64_C(1) << 63)
#define ENTRY_SWAPPED (UINT64_C(1) << 62)
#define ENTRY_FILE (UINT64_C(1) << 61)

static bool fail(GError **error, const char *what)
{
    sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "memory of the VM: %s", what);
    return false;
}

static int open_proc(pid_t pid, const char *name, GError **error)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
    return fd;
}

/* Adds a line of maps to the range if it goes on there; QEMU's advice may have cut it up. */
static bool add_line(const char *line, struct sp_guest_ram *ram, GError **error)
{
    uint64_t start, end, offset;
    char mode[5];
    int name_at = 0;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %*s %*s %n", &start, &end, mode,
               &offset, &name_at) < 4 ||
        name_at == 0 || !g_str_has_prefix(line + name_at, MEMFD_NAME) || strcmp(mode, "rw-p") != 0)
        return true;
    if (ram->size_bytes == 0)
        ram->address = start;
    if (start != ram->address + (uint64_t)ram->size_bytes || offset != (uint64_t)ram->size_bytes ||
        end <= start) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "memory of the VM: the map is not whole");
        return false;
    }
    ram->size_bytes += (int64_t)(end - start);
    return true;
}

bool sp_guest_ram_find(pid_t pid, int pidfd, int64_t size_bytes, struct sp_guest_ram *ret,
                       GError **error)
{
    int fd = open_proc(pid, "maps", error);
    if (fd < 0)
        return false;
    FILE *file = fdopen(fd, "re");
    char line[512];
    struct sp_guest_ram ram = {.pid = pid};
    bool ok = true;
    for (unsigned n = 0; ok && n < MAPS_MAX_LINES && fgets(line, sizeof line, file); n++)
        ok = add_line(line, &ram, error);
    fclose(file);
    if (!ok)
        return false;
    if (sp_pidfd_wait(pidfd, 0)) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "the VM has ended");
        return false;
    }
    if (ram.size_bytes != size_bytes) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL,
                    "memory of the VM: %" G_GINT64_FORMAT
                    " bytes are mapped, not %" G_GINT64_FORMAT,
                    ram.size_bytes, size_bytes);
        return false;
    }
    *ret = ram;
    return true;
}

/* --- which pages are private --- */

static void add_run(GArray *runs, uint64_t first, uint64_t count)
{
    if (runs->len > 0) {
        struct sp_page_run *last = &g_array_index(runs, struct sp_page_run, runs->len - 1);
        if (last->first + last->count == first) {
            last->count += count;
            return;
        }
    }
    struct sp_page_run run = {first, count};
    g_array_append_val(runs, run);
}

uint64_t sp_page_runs_total(const GArray *runs)
{
    uint64_t total = 0;
    for (guint i = 0; i < runs->len; i++)
        total += g_array_index(runs, struct sp_page_run, i).count;
    return total;
}

bool sp_guest_ram_private_by_pagemap(const struct sp_guest_ram *ram, GArray *runs, GError **error)
{
    enum { ENTRIES = 8192 };
    SP_CLEANUP(sp_close_fdp) int fd = open_proc(ram->pid, "pagemap", error);
    if (fd < 0)
        return false;
    g_autofree uint64_t *entries = g_new(uint64_t, ENTRIES);
    uint64_t pages = (uint64_t)ram->size_bytes / SP_PAGE_BYTES;
    for (uint64_t page = 0; page < pages;) {
        uint64_t wanted = MIN(pages - page, (uint64_t)ENTRIES);
        off_t at = (off_t)((ram->address / SP_PAGE_BYTES + page) * sizeof *entries);
        ssize_t n = pread(fd, entries, wanted * sizeof *entries, at);
        if (n <= 0 || n % (ssize_t)sizeof *entries != 0)
            return fail(error, "read pagemap");
        uint64_t got = (uint64_t)n / sizeof *entries;
        for (uint64_t i = 0; i < got; i++) {
            if ((entries[i] & (ENTRY_PRESENT | ENTRY_SWAPPED)) && !(entries[i] & ENTRY_FILE))
                add_run(runs, page + i, 1);
        }
        page += got;
    }
    return true;
}

/* Adds what the scan finds, as pages of the RAM. errno and false when the kernel refuses. */
static bool scan_all(int fd, const struct sp_guest_ram *ram, struct pm_scan_arg *arg, GArray *runs)
{
    g_autofree struct page_region *regions = g_new(struct page_region, REGIONS);
    arg->size = sizeof *arg;
    arg->start = ram->address;
    arg->end = ram->address + (uint64_t)ram->size_bytes;
    arg->vec = (uint64_t)(uintptr_t)regions;
    arg->vec_len = REGIONS;
    arg->category_anyof_mask = PM_IS_PRESENT | PM_IS_SWAPPED;
    arg->category_inverted = PM_IS_FILE;
    arg->return_mask = PM_IS_FILE;
    while (arg->start < arg->end) {
        int n = ioctl(fd, PM_SCAN, arg);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        for (int i = 0; i < n; i++)
            add_run(runs, (regions[i].start - ram->address) / SP_PAGE_BYTES,
                    (regions[i].end - regions[i].start) / SP_PAGE_BYTES);
        if (arg->walk_end <= arg->start)
            break;
        arg->start = arg->walk_end;
    }
    return true;
}

bool sp_guest_ram_private(const struct sp_guest_ram *ram, GArray *runs, GError **error)
{
    SP_CLEANUP(sp_close_fdp) int fd = open_proc(ram->pid, "pagemap", error);
    if (fd < 0)
        return false;
    struct pm_scan_arg arg = {.category_mask = PM_IS_FILE};
    if (scan_all(fd, ram, &arg, runs))
        return true;
    if (errno != ENOTTY && errno != EINVAL)
        return fail(error, "scan pages");
    g_array_set_size(runs, 0);
    return sp_guest_ram_private_by_pagemap(ram, runs, error);
}

bool sp_guest_ram_written(const struct sp_guest_ram *ram, bool protect, GArray *runs,
                          GError **error)
{
    SP_CLEANUP(sp_close_fdp) int fd = open_proc(ram->pid, "pagemap", error);
    if (fd < 0)
        return false;
    struct pm_scan_arg arg = {
        .flags = PM_CHECK_WPASYNC | (protect ? PM_WP_MATCHING : 0),
        .category_mask = PM_IS_FILE | PM_IS_WRITTEN,
    };
    return scan_all(fd, ram, &arg, runs) || fail(error, "scan written pages");
}

/* --- reading and writing --- */

bool sp_guest_ram_read(const struct sp_guest_ram *ram, const GArray *runs, guint *at,
                       uint64_t *skip, void *buffer, size_t buffer_bytes, GArray *pieces,
                       GError **error)
{
    struct iovec remote[MAX_PIECES];
    size_t len = 0;
    g_array_set_size(pieces, 0);
    while (*at < runs->len && pieces->len < MAX_PIECES && len < buffer_bytes) {
        const struct sp_page_run *run = &g_array_index(runs, struct sp_page_run, *at);
        struct sp_page_run piece = {
            run->first + *skip,
            MIN(run->count - *skip, (buffer_bytes - len) / SP_PAGE_BYTES),
        };
        remote[pieces->len] = (struct iovec){
            .iov_base = (void *)(uintptr_t)(ram->address + piece.first * SP_PAGE_BYTES),
            .iov_len = piece.count * SP_PAGE_BYTES,
        };
        len += piece.count * SP_PAGE_BYTES;
        *skip += piece.count;
        if (*skip == run->count) {
            (*at)++;
            *skip = 0;
        }
        g_array_append_val(pieces, piece);
    }
    if (len == 0)
        return true;
    struct iovec local = {.iov_base = buffer, .iov_len = len};
    ssize_t n = process_vm_readv(ram->pid, &local, 1, remote, pieces->len, 0);
    if (n == (ssize_t)len)
        return true;
    if (n >= 0)
        errno = EFAULT;
    return fail(error, "read");
}

bool sp_guest_ram_write(const struct sp_guest_ram *ram, uint64_t first_page, const void *bytes,
                        size_t len, GError **error)
{
    if (first_page * SP_PAGE_BYTES + len > (uint64_t)ram->size_bytes) {
        errno = EFBIG;
        return fail(error, "write");
    }
    struct iovec local = {.iov_base = (void *)bytes, .iov_len = len};
    struct iovec remote = {
        .iov_base = (void *)(uintptr_t)(ram->address + first_page * SP_PAGE_BYTES),
        .iov_len = len,
    };
    ssize_t n = process_vm_writev(ram->pid, &local, 1, &remote, 1, 0);
    if (n == (ssize_t)len)
        return true;
    if (n >= 0)
        errno = EFAULT;
    return fail(error, "write");
}

bool sp_guest_ram_may(pid_t pid, GError **error)
{
    SP_CLEANUP(sp_close_fdp) int fd = open_proc(pid, "maps", error);
    if (fd < 0)
        return false;
    char line[128] = "";
    uint64_t start;
    if (read(fd, line, sizeof line - 1) <= 0 || sscanf(line, "%" SCNx64 "-", &start) != 1)
        return fail(error, "read maps");
    uint8_t byte;
    struct iovec local = {.iov_base = &byte, .iov_len = 1};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)start, .iov_len = 1};
    if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != 1)
        return fail(error, "process_vm_readv is not permitted");
    SP_CLEANUP(sp_close_fdp) int pagemap = open_proc(pid, "pagemap", error);
    return pagemap >= 0;
}
