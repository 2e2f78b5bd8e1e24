#include "driver/microvm/manifest.h"

#include "base/error.h"
#include "base/json.h"
#include "driver/microvm/boot_key.h"

#define MAX_FILE 1e15

static const struct sp_json_field file_fields[] = {
    {.name = "size_bytes",
     .kind = SP_JSON_INT,
     .required = true,
     .max = MAX_FILE,
     .offset = offsetof(struct sp_boot_file, size_bytes)},
    {.name = "data_bytes",
     .kind = SP_JSON_INT,
     .required = true,
     .max = MAX_FILE,
     .offset = offsetof(struct sp_boot_file, data_bytes)},
    {.name = "sha256",
     .kind = SP_JSON_STRING,
     .required = true,
     .min = 64,
     .max = 64,
     .offset = offsetof(struct sp_boot_file, sha256)},
    {0},
};

static const struct sp_json_field fields[] = {
    {.name = "format",
     .kind = SP_JSON_INT,
     .required = true,
     .min = SP_BOOT_FORMAT,
     .max = SP_BOOT_FORMAT,
     .offset = offsetof(struct sp_boot_manifest, format)},
    {.name = "key",
     .kind = SP_JSON_STRING,
     .required = true,
     .min = SP_BOOT_KEY_MAX - 1,
     .max = SP_BOOT_KEY_MAX - 1,
     .offset = offsetof(struct sp_boot_manifest, key)},
    {.name = "identity",
     .kind = SP_JSON_STRING,
     .required = true,
     .min = 1,
     .max = 4096,
     .offset = offsetof(struct sp_boot_manifest, identity)},
    {.name = "memory",
     .kind = SP_JSON_OBJECT,
     .required = true,
     .sub = file_fields,
     .offset = offsetof(struct sp_boot_manifest, memory)},
    {.name = "state",
     .kind = SP_JSON_OBJECT,
     .required = true,
     .sub = file_fields,
     .offset = offsetof(struct sp_boot_manifest, state)},
    {.name = "disk",
     .kind = SP_JSON_OBJECT,
     .required = true,
     .sub = file_fields,
     .offset = offsetof(struct sp_boot_manifest, disk)},
    {0},
};

static json_t *file_value(const struct sp_boot_file *file)
{
    return json_pack("{s:I, s:I, s:s}", "size_bytes", (json_int_t)file->size_bytes, "data_bytes",
                     (json_int_t)file->data_bytes, "sha256", file->sha256);
}

char *sp_boot_manifest_text(const struct sp_boot_manifest *manifest)
{
    g_autoptr(json_t) value = json_pack(
        "{s:I, s:s, s:s, s:o, s:o, s:o}", "format", (json_int_t)manifest->format, "key",
        manifest->key, "identity", manifest->identity, "memory", file_value(&manifest->memory),
        "state", file_value(&manifest->state), "disk", file_value(&manifest->disk));
    return sp_json_dump(value);
}

bool sp_boot_manifest_parse(const char *text, size_t len, struct sp_boot_manifest *ret,
                            GError **error)
{
    struct sp_boot_manifest manifest = {0};
    g_autoptr(json_t) value = sp_json_parse(text, len, error);
    if (!value)
        return false;
    if (!sp_json_decode(value, fields, &manifest, error)) {
        sp_boot_manifest_clear(&manifest);
        return false;
    }
    *ret = manifest;
    return true;
}

void sp_boot_manifest_clear(struct sp_boot_manifest *manifest)
{
    sp_json_clear(fields, manifest);
}
