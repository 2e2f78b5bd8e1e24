#include "driver/microvm/cpio.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* "070701", then thirteen 8-digit hex fields. */
#define HEADER_BYTES 110

static void pad(GByteArray *archive, guint multiple)
{
    static const guint8 zeros[512];
    guint rest = archive->len % multiple;
    if (rest > 0)
        g_byte_array_append(archive, zeros, multiple - rest);
}

static void add_entry(GByteArray *archive, const char *name, unsigned mode, const void *content,
                      size_t len)
{
    char header[HEADER_BYTES + 1];
    size_t name_bytes = strlen(name) + 1;
    g_assert(len <= 64u * 1024 * 1024 && name_bytes <= 4096);
    /* The inode number only has to tell entries apart: the offset does. */
    snprintf(header, sizeof header, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
             archive->len, mode, 0u, 0u, S_ISDIR(mode) ? 2u : 1u, 0u, (unsigned)len, 0u, 0u, 0u, 0u,
             (unsigned)name_bytes, 0u);
    g_byte_array_append(archive, (const guint8 *)header, HEADER_BYTES);
    g_byte_array_append(archive, (const guint8 *)name, (guint)name_bytes);
    pad(archive, 4);
    if (len > 0)
        g_byte_array_append(archive, content, (guint)len);
    pad(archive, 4);
}

void sp_cpio_add_directory(GByteArray *archive, const char *name, mode_t mode)
{
    add_entry(archive, name, S_IFDIR | (mode & 07777), NULL, 0);
}

void sp_cpio_add_file(GByteArray *archive, const char *name, mode_t mode, const void *content,
                      size_t len)
{
    add_entry(archive, name, S_IFREG | (mode & 07777), content, len);
}

void sp_cpio_finish(GByteArray *archive)
{
    add_entry(archive, "TRAILER!!!", 0, NULL, 0);
    pad(archive, 512);
}
