#include "os/meminfo.h"

#include <glib.h>
#include <string.h>

#define NAME "\nMemAvailable:"

int64_t sp_meminfo_available_bytes(void)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents("/proc/meminfo", &text, NULL, NULL))
        return 0;
    const char *at = strstr(text, NAME);
    return at ? g_ascii_strtoll(at + strlen(NAME), NULL, 10) * 1024 : 0;
}
