/* What the kernel says about the host's memory: /proc/meminfo (proc_meminfo(5)). */
#pragma once

#include <stdint.h>

/* MemAvailable: what programs can still take without swapping, bytes; 0 when it cannot be read. */
int64_t sp_meminfo_available_bytes(void);
