/* Between the worker and the library that it loads into QEMU. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SP_UFFD_SOCKET 10 /* SP_VMM_FD_TRACK */

struct sp_uffd_range {
    uint64_t start, length_bytes;
};

/* The library itself, as bytes of the worker's own program (made by embed.py). */
extern const unsigned char sp_uffd_library[];
extern const size_t sp_uffd_library_bytes;
