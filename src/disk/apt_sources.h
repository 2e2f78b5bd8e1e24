/* Where this machine gets Debian packages from. */
#pragma once

#include <gio/gio.h>
#include <glib.h>
#include <stdint.h>

/* One-line sources (sources.list(5)) of Debian's own suites of this machine's release, as its apt
 * is configured, with a newline behind each; third parties and backports are left out. Runs apt-get
 * update first when apt has no indexes yet. ret_codename: "bookworm". Free both with g_free(). NULL
 * on failure; SP_ERROR_UNSUPPORTED: this is not a Debian machine, or its apt knows no Debian suite.
 */
char *sp_apt_debian_sources(int64_t timeout_ms, GCancellable *cancellable, char **ret_codename,
                            GError **error);

/* The settings of this machine's apt for reaching its mirrors (proxies, retries, time checks), as
 * lines of apt.conf(5); they are for the build only. Free with g_free(); NULL on failure. */
char *sp_apt_acquire_settings(int64_t timeout_ms, GCancellable *cancellable, GError **error);
