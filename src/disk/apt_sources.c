#include "disk/apt_sources.h"

#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "disk/program.h"

#define KEYRING "/usr/share/keyrings/debian-archive-keyring.gpg"

static void collect(void *user, const char *line)
{
    g_ptr_array_add(user, g_strdup(line));
}

/* Runs a program of apt; its lines, or NULL. */
static GPtrArray *lines_of(const char *const *argv, int64_t timeout_ms, GCancellable *cancellable,
                           GError **error)
{
    GPtrArray *lines = g_ptr_array_new_with_free_func(g_free);
    const struct sp_program program = {
        .argv = argv,
        .timeout_ms = timeout_ms,
        .cancellable = cancellable,
        .progress = collect,
        .user = lines,
    };
    if (!sp_program_run(&program, error)) {
        g_clear_pointer(&lines, g_ptr_array_unref);
    }
    return lines;
}

/* VERSION_CODENAME of os-release(5) when the system is Debian. */
static char *read_codename(GError **error)
{
    g_autofree char *id = g_get_os_info(G_OS_INFO_KEY_ID);
    char *codename = g_get_os_info(G_OS_INFO_KEY_VERSION_CODENAME);
    if (g_strcmp0(id, "debian") != 0 || codename == NULL) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                    "templates are built with the packages of a Debian machine; this is \"%s\"",
                    id != NULL ? id : "unknown");
        g_clear_pointer(&codename, g_free);
    }
    return codename;
}

/* The fields that list_sources() asks for, in this order. */
enum { ORIGIN, CODENAME, RELEASE, URI, COMPONENT, N_FIELDS };

static bool is_wanted(char *const *fields, const char *codename)
{
    g_autofree char *updates = g_strconcat(codename, "-updates", NULL);
    g_autofree char *security = g_strconcat(codename, "-security", NULL);
    return strcmp(fields[ORIGIN], "Debian") == 0 && strpbrk(fields[URI], " \t") == NULL &&
           (strcmp(fields[CODENAME], codename) == 0 || strcmp(fields[CODENAME], updates) == 0 ||
            strcmp(fields[CODENAME], security) == 0);
}

/* The sources that apt has indexes of; empty text when there are none. */
static char *list_sources(const char *codename, int64_t timeout_ms, GCancellable *cancellable,
                          GError **error)
{
    const char *const argv[] = {"apt-get",
                                "indextargets",
                                "--format",
                                "$(ORIGIN)|$(CODENAME)|$(RELEASE)|$(REPO_URI)|$(COMPONENT)",
                                "Created-By: Packages",
                                NULL};
    g_autoptr(GPtrArray) lines = lines_of(argv, timeout_ms, cancellable, error);
    if (lines == NULL) {
        return NULL;
    }
    const char *options =
        g_file_test(KEYRING, G_FILE_TEST_EXISTS) ? "[signed-by=" KEYRING "] " : "";
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    GString *text = g_string_new(NULL);
    for (guint i = 0; i < lines->len; i++) {
        g_auto(GStrv) fields = g_strsplit(lines->pdata[i], "|", -1);
        if (g_strv_length(fields) != N_FIELDS || !is_wanted(fields, codename)) {
            continue;
        }
        char *line = g_strdup_printf("deb %s%s %s %s\n", options, fields[URI], fields[RELEASE],
                                     fields[COMPONENT]);
        /* One row for each architecture; one is enough. */
        if (g_hash_table_add(seen, line)) {
            g_string_append(text, line);
        }
    }
    return g_string_free(text, FALSE);
}

char *sp_apt_debian_sources(int64_t timeout_ms, GCancellable *cancellable, char **ret_codename,
                            GError **error)
{
    int64_t deadline = sp_time_monotonic_ms() + timeout_ms;
    g_autofree char *codename = read_codename(error);
    if (codename == NULL) {
        return NULL;
    }
    g_autofree char *sources = list_sources(codename, timeout_ms, cancellable, error);
    if (sources != NULL && sources[0] == '\0') {
        const char *const update[] = {"apt-get", "-q", "update", NULL};
        g_autoptr(GPtrArray) output =
            lines_of(update, deadline - sp_time_monotonic_ms(), cancellable, error);
        if (output == NULL) {
            return NULL;
        }
        g_free(sources);
        sources = list_sources(codename, deadline - sp_time_monotonic_ms(), cancellable, error);
    }
    if (sources != NULL && sources[0] == '\0') {
        g_set_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED,
                    "apt of this machine knows no suite of Debian %s", codename);
        return NULL;
    }
    if (sources != NULL) {
        *ret_codename = g_steal_pointer(&codename);
    }
    return g_steal_pointer(&sources);
}

char *sp_apt_acquire_settings(int64_t timeout_ms, GCancellable *cancellable, GError **error)
{
    static const char *const prefixes[] = {"Acquire::http", "Acquire::https", "Acquire::Retries",
                                           "Acquire::Check-", "Acquire::ForceIPv"};
    const char *const argv[] = {"apt-config", "--no-empty", "dump", NULL};
    g_autoptr(GPtrArray) lines = lines_of(argv, timeout_ms, cancellable, error);
    if (lines == NULL) {
        return NULL;
    }
    GString *text = g_string_new(NULL);
    for (guint i = 0; i < lines->len; i++) {
        for (size_t j = 0; j < G_N_ELEMENTS(prefixes); j++) {
            if (g_str_has_prefix(lines->pdata[i], prefixes[j])) {
                g_string_append_printf(text, "%s\n", (char *)lines->pdata[i]);
                break;
            }
        }
    }
    return g_string_free(text, FALSE);
}
