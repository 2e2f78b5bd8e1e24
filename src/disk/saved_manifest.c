/* The manifest of a saved form as bytes: {"sha256":"…", and the rest, of which that is the hash. */
#include "disk/saved.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/time.h"

#define HEAD "{\"sha256\":\""
#define HEAD_BYTES (sizeof HEAD - 1)
#define HASH_CHARS (SP_HASH_HEX - 1)
#define AFTER_HASH "\","
#define REST_AT (HEAD_BYTES + HASH_CHARS + sizeof AFTER_HASH - 1)

#define MAX_BYTES 1e15
#define MAX_COUNT 1e9
#define MAX_TIME 1e15

/* What the table decodes; slot and files are moved from here. */
struct decoded {
    struct sp_saved_manifest manifest;
    int64_t slot;
    char *sha256;
    json_t *files;
};

#define MEMBER(member) offsetof(struct decoded, manifest.member)

static const struct sp_json_field fields[] = {
    {.name = "sha256",
     .kind = SP_JSON_STRING,
     .required = true,
     .max = HASH_CHARS,
     .offset = offsetof(struct decoded, sha256)},
    {.name = "format",
     .kind = SP_JSON_INT,
     .required = true,
     .min = 1,
     .max = MAX_COUNT,
     .offset = MEMBER(format)},
    {.name = "sandbox_id",
     .kind = SP_JSON_STRING,
     .required = true,
     .min = 1,
     .max = SP_ID_MAX,
     .offset = MEMBER(sandbox_id)},
    {.name = "tier",
     .kind = SP_JSON_STRING,
     .required = true,
     .min = 1,
     .max = 32,
     .offset = MEMBER(tier)},
    {.name = "template_digest",
     .kind = SP_JSON_STRING,
     .required = true,
     .max = 128,
     .offset = MEMBER(template_digest)},
    {.name = "memory", .kind = SP_JSON_BOOL, .required = true, .offset = MEMBER(memory)},
    {.name = "durable", .kind = SP_JSON_BOOL, .required = true, .offset = MEMBER(durable)},
    {.name = "boot_id",
     .kind = SP_JSON_STRING,
     .required = true,
     .max = 64,
     .offset = MEMBER(boot_id)},
    {.name = "cpus",
     .kind = SP_JSON_NUMBER,
     .required = true,
     .max = MAX_COUNT,
     .offset = MEMBER(cpus)},
    {.name = "memory_mb",
     .kind = SP_JSON_INT,
     .required = true,
     .max = MAX_COUNT,
     .offset = MEMBER(memory_mb)},
    {.name = "disk_mb",
     .kind = SP_JSON_INT,
     .required = true,
     .max = MAX_COUNT,
     .offset = MEMBER(disk_mb)},
    {.name = "pids",
     .kind = SP_JSON_INT,
     .required = true,
     .max = MAX_COUNT,
     .offset = MEMBER(pids)},
    {.name = "slot",
     .kind = SP_JSON_INT,
     .required = true,
     .max = SP_SLOTS - 1,
     .offset = offsetof(struct decoded, slot)},
    {.name = "created_at_ms",
     .kind = SP_JSON_INT,
     .required = true,
     .max = MAX_TIME,
     .offset = MEMBER(created_at_ms)},
    {.name = "files",
     .kind = SP_JSON_RAW,
     .required = true,
     .offset = offsetof(struct decoded, files)},
    {.name = "machine", .kind = SP_JSON_RAW, .offset = MEMBER(machine)},
    {0},
};

struct file {
    struct sp_saved_file file;
    char *sha256;
};

static const struct sp_json_field file_fields[] = {
    {.name = "name",
     .kind = SP_JSON_STRING,
     .required = true,
     .min = 1,
     .max = 64,
     .offset = offsetof(struct file, file.name)},
    {.name = "size_bytes",
     .kind = SP_JSON_INT,
     .required = true,
     .max = MAX_BYTES,
     .offset = offsetof(struct file, file.size_bytes)},
    {.name = "data_bytes",
     .kind = SP_JSON_INT,
     .required = true,
     .max = MAX_BYTES,
     .offset = offsetof(struct file, file.data_bytes)},
    {.name = "sha256",
     .kind = SP_JSON_STRING,
     .required = true,
     .max = HASH_CHARS,
     .offset = offsetof(struct file, sha256)},
    {0},
};

static char *boot_id(void)
{
    char *text = NULL;
    if (!g_file_get_contents("/proc/sys/kernel/random/boot_id", &text, NULL, NULL))
        return g_strdup("");
    return g_strchomp(text);
}

static json_t *files_value(const struct sp_saved_manifest *manifest)
{
    json_t *list = json_array();
    for (guint i = 0; manifest->files && i < manifest->files->len; i++) {
        const struct sp_saved_file *file = &g_array_index(manifest->files, struct sp_saved_file, i);
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:I, s:s}", "name", file->name, "size_bytes",
                                        (json_int_t)file->size_bytes, "data_bytes",
                                        (json_int_t)file->data_bytes, "sha256", file->sha256));
    }
    return list;
}

char *sp_saved_manifest_text(const struct sp_saved_manifest *m, size_t *ret_len)
{
    g_autofree char *boot = m->boot_id ? g_strdup(m->boot_id) : boot_id();
    g_autoptr(json_t) value = json_pack(
        "{s:i, s:s, s:s, s:s, s:b, s:b, s:s, s:f, s:I, s:I, s:I, s:i, s:I, s:o, s:O*}", "format",
        SP_SAVED_FORMAT, "sandbox_id", m->sandbox_id, "tier", m->tier, "template_digest",
        m->template_digest ? m->template_digest : "", "memory", m->memory, "durable", m->durable,
        "boot_id", boot, "cpus", m->cpus, "memory_mb", (json_int_t)m->memory_mb, "disk_mb",
        (json_int_t)m->disk_mb, "pids", (json_int_t)m->pids, "slot", (int)m->slot, "created_at_ms",
        (json_int_t)(m->created_at_ms ? m->created_at_ms : sp_time_now_ms()), "files",
        files_value(m), "machine", m->machine);
    g_assert(value); /* only text that is not UTF-8 fails, and all of it is ours */
    g_autofree char *body = sp_json_dump(value);
    const char *rest = body + 1; /* without its own brace */
    g_autofree char *hash = g_compute_checksum_for_string(G_CHECKSUM_SHA256, rest, -1);
    char *text = g_strconcat(HEAD, hash, AFTER_HASH, rest, NULL);
    if (ret_len)
        *ret_len = strlen(text);
    return text;
}

static bool damaged(GError **error, const char *why)
{
    g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION, "the manifest is damaged: %s", why);
    return false;
}

static bool check_hash(const char *text, size_t len, GError **error)
{
    if (len < REST_AT || memcmp(text, HEAD, HEAD_BYTES) != 0 ||
        memcmp(text + HEAD_BYTES + HASH_CHARS, AFTER_HASH, sizeof AFTER_HASH - 1) != 0)
        return damaged(error, "it does not begin with its hash");
    g_autofree char *hash = g_compute_checksum_for_data(
        G_CHECKSUM_SHA256, (const guchar *)text + REST_AT, len - REST_AT);
    if (memcmp(hash, text + HEAD_BYTES, HASH_CHARS) != 0)
        return damaged(error, "its hash does not fit");
    return true;
}

static bool is_plain_name(const char *name)
{
    return name[0] != '.' && !strchr(name, '/');
}

static bool is_hash(const char *text)
{
    size_t len = strlen(text);
    return len == 0 || (len == HASH_CHARS && strspn(text, "0123456789abcdef") == len);
}

static bool decode_files(json_t *list, struct sp_saved_manifest *manifest, GError **error)
{
    if (!json_is_array(list) || json_array_size(list) > SP_SAVED_FILES_MAX)
        return damaged(error, "files");
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        struct file f = {0};
        bool ok = sp_json_decode(item, file_fields, &f, error);
        if (ok && (!is_plain_name(f.file.name) || !is_hash(f.sha256) ||
                   sp_saved_manifest_file(manifest, f.file.name)))
            ok = damaged(error, "files");
        if (ok)
            sp_saved_manifest_add(manifest, f.file.name, f.file.size_bytes, f.file.data_bytes,
                                  f.sha256);
        sp_json_clear(file_fields, &f);
        if (!ok)
            return false;
    }
    return true;
}

static bool decode(const char *text, size_t len, struct decoded *d, GError **error)
{
    g_autoptr(GError) cause = NULL;
    g_autoptr(json_t) value = sp_json_parse(text, len, &cause);
    json_int_t format = json_integer_value(json_object_get(value, "format"));
    /* First of all: the rest of another format may look different. */
    if (value && format != SP_SAVED_FORMAT) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "the form has format %" JSON_INTEGER_FORMAT ", this version reads %d", format,
                    SP_SAVED_FORMAT);
        return false;
    }
    if (!value || !sp_json_decode(value, fields, d, &cause) ||
        !decode_files(d->files, &d->manifest, &cause))
        return damaged(error, cause->message);
    if (d->manifest.machine && !json_is_object(d->manifest.machine))
        return damaged(error, "machine");
    return true;
}

bool sp_saved_manifest_parse(const char *text, size_t len, struct sp_saved_manifest *ret,
                             GError **error)
{
    if (len > SP_SAVED_MANIFEST_MAX)
        return damaged(error, "too long");
    if (!check_hash(text, len, error))
        return false;
    struct decoded d = {0};
    bool ok = decode(text, len, &d, error);
    g_free(d.sha256);
    json_decref(d.files);
    d.manifest.slot = (unsigned)d.slot;
    if (ok)
        *ret = d.manifest;
    else
        sp_saved_manifest_clear(&d.manifest);
    return ok;
}

static void clear_file(void *data)
{
    struct sp_saved_file *file = data;
    g_free(file->name);
}

void sp_saved_manifest_add(struct sp_saved_manifest *manifest, const char *name, int64_t size_bytes,
                           int64_t data_bytes, const char *sha256)
{
    if (!manifest->files) {
        manifest->files = g_array_new(FALSE, FALSE, sizeof(struct sp_saved_file));
        g_array_set_clear_func(manifest->files, clear_file);
    }
    struct sp_saved_file file = {
        .name = g_strdup(name),
        .size_bytes = size_bytes,
        .data_bytes = data_bytes,
    };
    g_strlcpy(file.sha256, sha256 ? sha256 : "", sizeof file.sha256);
    g_array_append_val(manifest->files, file);
}

const struct sp_saved_file *sp_saved_manifest_file(const struct sp_saved_manifest *manifest,
                                                   const char *name)
{
    for (guint i = 0; manifest->files && i < manifest->files->len; i++) {
        const struct sp_saved_file *file = &g_array_index(manifest->files, struct sp_saved_file, i);
        if (strcmp(file->name, name) == 0)
            return file;
    }
    return NULL;
}

void sp_saved_manifest_clear(struct sp_saved_manifest *manifest)
{
    g_free(manifest->sandbox_id);
    g_free(manifest->tier);
    g_free(manifest->template_digest);
    g_free(manifest->boot_id);
    if (manifest->files)
        g_array_unref(manifest->files);
    json_decref(manifest->machine);
    memset(manifest, 0, sizeof *manifest);
}
