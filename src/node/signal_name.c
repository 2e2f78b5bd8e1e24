#include "node/signal_name.h"

#include <glib.h>
#include <signal.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"

static const struct {
    const char *name;
    int number;
} signals[] = {
    {"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT},   {"ABRT", SIGABRT}, {"KILL", SIGKILL},
    {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"ALRM", SIGALRM},   {"TERM", SIGTERM}, {"CONT", SIGCONT},
    {"STOP", SIGSTOP}, {"TSTP", SIGTSTP}, {"TTIN", SIGTTIN},   {"TTOU", SIGTTOU}, {"PIPE", SIGPIPE},
    {"CHLD", SIGCHLD}, {"SEGV", SIGSEGV}, {"WINCH", SIGWINCH}, {"URG", SIGURG},
};

int sp_signal_from_name(const char *name)
{
    if (g_str_has_prefix(name, "SIG"))
        name += 3;
    for (size_t i = 0; i < G_N_ELEMENTS(signals); i++) {
        if (strcmp(signals[i].name, name) == 0)
            return signals[i].number;
    }
    return 0;
}

bool sp_signal_from_body(json_t *body, int32_t *ret_signal, GError **error)
{
    static const struct sp_json_field table[] = {
        {"signal", SP_JSON_STRING, 0, 1, 16, .required = true},
        {NULL},
    };
    g_autofree char *name = NULL;
    if (!sp_json_decode(body, table, &name, error))
        return false;
    int number = sp_signal_from_name(name);
    if (number == 0) {
        sp_error_set_field(error, "/signal", "unknown signal");
        return false;
    }
    *ret_signal = number;
    return true;
}
