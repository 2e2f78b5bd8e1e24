#include "base/time.h"

#include <glib.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *suffix;
    int64_t ms;
} units[] = {
    {"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1},
};

int64_t sp_time_now_ms(void)
{
    return g_get_real_time() / 1000;
}

int64_t sp_time_monotonic_us(void)
{
    return g_get_monotonic_time();
}

int64_t sp_time_monotonic_ms(void)
{
    return g_get_monotonic_time() / 1000;
}

void sp_time_format(int64_t realtime_ms, char ret_text[SP_TIME_TEXT])
{
    time_t seconds = (time_t)(realtime_ms / 1000);
    struct tm tm;
    char date[24];
    gmtime_r(&seconds, &tm);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    g_snprintf(ret_text, SP_TIME_TEXT, "%s.%03dZ", date, (int)(realtime_ms % 1000));
}

bool sp_duration_parse(const char *text, int64_t *ret_ms)
{
    const int64_t max_ms = INT64_C(3650) * 86400000;
    int64_t n = 0;
    const char *c = text;
    for (; g_ascii_isdigit(*c); c++) {
        n = n * 10 + (*c - '0');
        if (n > max_ms)
            return false;
    }
    if (c == text)
        return false;
    for (size_t i = 0; i < G_N_ELEMENTS(units); i++) {
        if (strcmp(c, units[i].suffix) == 0) {
            if (n > max_ms / units[i].ms)
                return false;
            *ret_ms = n * units[i].ms;
            return true;
        }
    }
    return false;
}

void sp_duration_format(int64_t ms, char ret_text[SP_TIME_TEXT])
{
    for (size_t i = 0; i < G_N_ELEMENTS(units); i++) {
        /* "0s" rather than "0d"; days only from two on, so that 24h stays as people write it */
        if (ms % units[i].ms == 0 && (ms / units[i].ms > (i == 0 ? 1 : 0) || units[i].ms == 1000)) {
            g_snprintf(ret_text, SP_TIME_TEXT, "%" G_GINT64_FORMAT "%s", ms / units[i].ms,
                       units[i].suffix);
            return;
        }
    }
}
