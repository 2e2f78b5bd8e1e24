#include "disk/template.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/json.h"
#include "disk/tree.h"

#define HEX_LEN 64
#define CONFIG_MAX (1 << 20)
#define EROFS_SUPER_OFFSET 1024

static const struct sp_json_field config_table[] = {
    {"format", SP_JSON_INT, offsetof(struct sp_template_config, format), 1, 1, .required = true},
    {"name", SP_JSON_STRING, offsetof(struct sp_template_config, name), 1, 64, .required = true},
    {"user", SP_JSON_STRING, offsetof(struct sp_template_config, user), 1, 32, .required = true},
    {"workdir", SP_JSON_STRING, offsetof(struct sp_template_config, workdir), 1, 1024,
     .required = true},
    {"env", SP_JSON_STRING_MAP, offsetof(struct sp_template_config, env), 0, 256},
    {"ready", SP_JSON_STRING_LIST, offsetof(struct sp_template_config, ready), 0, 64,
     .required = true},
    {"packages", SP_JSON_STRING_LIST, offsetof(struct sp_template_config, packages), 0, 10000},
    {NULL},
};

bool sp_template_hex_valid(const char *text)
{
    return strlen(text) == HEX_LEN && strspn(text, "0123456789abcdef") == HEX_LEN;
}

const char *sp_template_digest_hex(const char *digest)
{
    const char *hex = digest + strlen("sha256:");
    return g_str_has_prefix(digest, "sha256:") && sp_template_hex_valid(hex) ? hex : NULL;
}

char *sp_template_dir(const struct sp_volume *volume, const char *digest)
{
    const char *hex = sp_template_digest_hex(digest);
    return hex != NULL ? g_build_filename(sp_volume_dir(volume), "templates", hex, NULL) : NULL;
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **sp_template_list(const struct sp_volume *volume, GError **error)
{
    g_autofree char *path = g_build_filename(sp_volume_dir(volume), "templates", NULL);
    g_autoptr(GDir) dir = g_dir_open(path, 0, error);
    if (dir == NULL) {
        return NULL;
    }
    GPtrArray *digests = g_ptr_array_new();
    const char *name;
    while ((name = g_dir_read_name(dir)) != NULL) {
        if (sp_template_hex_valid(name)) {
            g_ptr_array_add(digests, g_strconcat("sha256:", name, NULL));
        }
    }
    g_ptr_array_sort(digests, compare_text);
    g_ptr_array_add(digests, NULL);
    return (char **)g_ptr_array_free(digests, FALSE);
}

bool sp_template_remove(const struct sp_volume *volume, const char *digest, GError **error)
{
    g_autofree char *dir = sp_template_dir(volume, digest);
    if (dir == NULL) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "not a digest: %s", digest);
        return false;
    }
    /* First out of sight in one step, so that a crash leaves no half template. What then remains in
     * tmp/ is for sp_template_clean(). */
    char id[SP_ID_MAX];
    sp_id_new("rm", id);
    g_autofree char *away = g_build_filename(sp_volume_dir(volume), "tmp", id, NULL);
    if (rename(dir, away) < 0) {
        if (errno == ENOENT) {
            return true;
        }
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove template %s", digest);
        return false;
    }
    if (sp_tree_remove(away) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "remove %s", away);
        return false;
    }
    return true;
}

int64_t sp_template_image_bytes(const char *template_dir)
{
    g_autofree char *image = g_build_filename(template_dir, "image.erofs", NULL);
    struct stat st;
    return stat(image, &st) == 0 ? (int64_t)st.st_size : -1;
}

static bool check_image(const char *template_dir, GError **error)
{
    g_autofree char *image = g_build_filename(template_dir, "image.erofs", NULL);
    int fd = open(image, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    uint32_t magic = 0;
    ssize_t n = fd >= 0 ? pread(fd, &magic, sizeof(magic), EROFS_SUPER_OFFSET) : -1;
    int failure = n < 0 ? errno : 0;
    if (fd >= 0) {
        close(fd);
    }
    if (failure != 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, failure, "read %s", image);
        return false;
    }
    if (n != sizeof(magic) || GUINT32_FROM_LE(magic) != EROFS_SUPER_MAGIC_V1) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s is not an erofs image", image);
        return false;
    }
    return true;
}

bool sp_template_validate(const struct sp_volume *volume, const char *digest, bool full,
                          GError **error)
{
    g_autofree char *dir = sp_template_dir(volume, digest);
    if (dir == NULL || access(dir, F_OK) < 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "no template %s", digest);
        return false;
    }
    struct sp_template_config config = {0};
    bool valid = check_image(dir, error) && sp_template_config_load(dir, &config, error);
    sp_template_config_clear(&config);
    if (valid && full) {
        g_autofree char *real = sp_template_digest(dir, error);
        valid = real != NULL;
        if (valid && strcmp(real, digest) != 0) {
            g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s holds %s", dir, real);
            valid = false;
        }
    }
    return valid;
}

/* SHA-256 of a file, raw. */
static bool hash_file(const char *dir, const char *name, guint8 ret_hash[32], GError **error)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "open %s", path);
        return false;
    }
    g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_SHA256);
    g_autofree guint8 *buffer = g_malloc(1 << 20);
    ssize_t n;
    while ((n = read(fd, buffer, 1 << 20)) > 0) {
        g_checksum_update(sum, buffer, n);
    }
    int failure = n < 0 ? errno : 0;
    close(fd);
    if (failure != 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, failure, "read %s", path);
        return false;
    }
    gsize len = 32;
    g_checksum_get_digest(sum, ret_hash, &len);
    return true;
}

char *sp_template_digest(const char *template_dir, GError **error)
{
    guint8 hashes[64];
    if (!hash_file(template_dir, "image.erofs", hashes, error) ||
        !hash_file(template_dir, "config.json", hashes + 32, error)) {
        return NULL;
    }
    g_autofree char *hex = g_compute_checksum_for_data(G_CHECKSUM_SHA256, hashes, sizeof(hashes));
    return g_strconcat("sha256:", hex, NULL);
}

bool sp_template_config_load(const char *template_dir, struct sp_template_config *ret_config,
                             GError **error)
{
    g_autofree char *path = g_build_filename(template_dir, "config.json", NULL);
    struct stat st;
    g_autofree char *text = NULL;
    gsize len = 0;
    memset(ret_config, 0, sizeof(*ret_config));
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > CONFIG_MAX) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "%s is not a file of at most 1 MiB", path);
        return false;
    }
    if (!g_file_get_contents(path, &text, &len, error)) {
        return false;
    }
    g_autoptr(json_t) root = sp_json_parse(text, len, error);
    if (root == NULL || !sp_json_decode(root, config_table, ret_config, error)) {
        g_prefix_error(error, "%s: ", path);
        return false;
    }
    return true;
}

bool sp_template_config_save(const char *template_dir, const struct sp_template_config *config,
                             GError **error)
{
    g_autoptr(json_t) root =
        json_pack("{s:I, s:s, s:s, s:s, s:o, s:o, s:o}", "format", (json_int_t)config->format,
                  "name", config->name, "user", config->user, "workdir", config->workdir, "env",
                  sp_json_from_map(config->env), "ready", sp_json_from_strv(config->ready),
                  "packages", sp_json_from_strv(config->packages));
    char *dumped = root != NULL ? json_dumps(root, JSON_SORT_KEYS | JSON_INDENT(1)) : NULL;
    if (dumped == NULL) {
        g_set_error(error, SP_ERROR, SP_ERROR_INTERNAL, "the configuration is not valid JSON");
        return false;
    }
    g_autofree char *path = g_build_filename(template_dir, "config.json", NULL);
    g_autofree char *text = g_strconcat(dumped, "\n", NULL);
    free(dumped);
    return g_file_set_contents_full(path, text, -1, G_FILE_SET_CONTENTS_DURABLE, 0644, error);
}

void sp_template_config_clear(struct sp_template_config *config)
{
    sp_json_clear(config_table, config);
}
