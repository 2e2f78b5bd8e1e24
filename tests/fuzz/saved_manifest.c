/*
 * libFuzzer target of the manifests of saved forms: the input as it is, and once more as the body of a
 * manifest whose hash fits. What is accepted can be written and read again.
 * Build and run: scripts/fuzz.sh build-fuzz 60 saved_manifest
 */
#include "disk/saved.h"

#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(const char *text, size_t len)
{
    struct sp_saved_manifest manifest = {0}, again = {0};
    if (!sp_saved_manifest_parse(text, len, &manifest, NULL)) {
        if (manifest.sandbox_id || manifest.files || manifest.machine)
            __builtin_trap();
        return;
    }
    for (guint i = 0; manifest.files && i < manifest.files->len; i++) {
        const char *name = g_array_index(manifest.files, struct sp_saved_file, i).name;
        if (name[0] == '\0' || name[0] == '.' || strchr(name, '/'))
            __builtin_trap();
    }
    size_t written;
    g_autofree char *back = sp_saved_manifest_text(&manifest, &written);
    if (written <= SP_SAVED_MANIFEST_MAX && !sp_saved_manifest_parse(back, written, &again, NULL))
        __builtin_trap();
    sp_saved_manifest_clear(&again);
    sp_saved_manifest_clear(&manifest);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    check((const char *)bytes, len);
    g_autofree char *hash = g_compute_checksum_for_data(G_CHECKSUM_SHA256, bytes, len);
    g_autofree char *head = g_strdup_printf("{\"sha256\":\"%s\",", hash);
    size_t head_len = strlen(head);
    g_autofree char *whole = g_malloc(head_len + len + 1);
    memcpy(whole, head, head_len);
    memcpy(whole + head_len, bytes, len);
    check(whole, head_len + len);
    return 0;
}
