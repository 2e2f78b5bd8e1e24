#include "base/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"

#define FILE_MAX (64u << 10)
#define DELAY_MAX_MS 60000
#define EXIT_STATUS 70

/* Set once, before main(). */
static const char *path;

__attribute__((constructor)) static void find_path(void)
{
    path = getenv(SP_FAILPOINTS_ENV);
    if (path && !*path)
        path = NULL;
}

/* The file's text, at most FILE_MAX bytes; NULL when there is none. */
static char *read_file(void)
{
    char *text = NULL;
    gsize len = 0;
    if (!g_file_get_contents(path, &text, &len, NULL))
        return NULL;
    if (len <= FILE_MAX)
        return text;
    g_free(text);
    return NULL;
}

/* Puts the text in the place of the file's in one step. */
static void write_file(const char *text)
{
    g_autofree char *temporary = g_strconcat(path, ".new", NULL);
    if (g_file_set_contents_full(temporary, text, -1, G_FILE_SET_CONTENTS_NONE, 0666, NULL) &&
        rename(temporary, path) == 0)
        return;
    unlink(temporary);
}

/* Finds the line of the name and uses it up once: its count goes down, or it goes. The action;
 * NULL: there is no such line. */
static char *consume(const char *name)
{
    g_autofree char *text = read_file();
    if (!text)
        return NULL;
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    g_autoptr(GString) rest = g_string_new(NULL);
    char *action = NULL;
    for (char **line = lines; *line; line++) {
        g_auto(GStrv) words = g_strsplit(g_strstrip(*line), " ", 3);
        if (!action && words[0] && words[1] && strcmp(words[0], name) == 0) {
            gint64 left = words[2] ? g_ascii_strtoll(words[2], NULL, 10) : 1;
            action = g_strdup(words[1]);
            if (left > 1)
                g_string_append_printf(rest, "%s %s %" G_GINT64_FORMAT "\n", name, action,
                                       left - 1);
        } else if (**line) {
            g_string_append_printf(rest, "%s\n", *line);
        }
    }
    if (action)
        write_file(rest->str);
    return action;
}

/* The same, alone among all threads and processes that use the file. */
static char *consume_locked(const char *name)
{
    if (access(path, R_OK) < 0)
        return NULL;
    g_autofree char *lock = g_strconcat(path, ".lock", NULL);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return NULL;
    char *action = NULL;
    if (flock(fd, LOCK_EX) == 0) /* held for one small rewrite only */
        action = consume(name);
    close(fd);
    return action;
}

static bool act(const char *name, const char *action, GError **error)
{
    if (strcmp(action, "error") == 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "failpoint %s", name);
        return false;
    }
    if (strcmp(action, "kill") == 0) {
        kill(getpid(), SIGKILL);
        pause();
    }
    if (strcmp(action, "exit") == 0)
        _exit(EXIT_STATUS);
    if (g_str_has_prefix(action, "delay:")) {
        gint64 ms = g_ascii_strtoll(action + strlen("delay:"), NULL, 10);
        g_usleep((gulong)CLAMP(ms, 0, DELAY_MAX_MS) * 1000);
    }
    return true;
}

bool sp_failpoint(const char *name, GError **error)
{
    if (G_LIKELY(!path))
        return true;
    g_autofree char *action = consume_locked(name);
    return !action || act(name, action, error);
}
