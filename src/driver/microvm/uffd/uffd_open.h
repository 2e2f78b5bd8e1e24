/* Between the worker and the library that it loads into QEMU. */
#pragma once

#include <stddef.h>

#define SP_UFFD_FD 10 /* SP_VMM_FD_LIBRARY */

/* The library itself, as bytes of the worker's own program (made by embed.py). */
extern const unsigned char sp_uffd_library[];
extern const size_t sp_uffd_library_bytes;
