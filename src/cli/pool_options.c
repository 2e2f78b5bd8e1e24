#include "cli/pool_options.h"

#include "base/error.h"

#define MEMBERS_MAX 1024
#define MEMORY_MAX_MB (1 << 24)

/* Not an SP_OPTION_INT: a zero that was asked for is not the same as none. */
static bool read_number(const char *name, const char *text, int64_t max, int64_t *ret,
                        GError **error)
{
    gint64 number = *ret;
    if (text && !g_ascii_string_to_signed(text, 10, 0, max, &number, NULL)) {
        g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                    "--%s: \"%s\" is not a whole number from 0 to %" G_GINT64_FORMAT, name, text,
                    (gint64)max);
        return false;
    }
    *ret = number;
    return true;
}

bool sp_pool_options_read(const struct sp_pool_options *options, struct sp_pool_numbers *ret,
                          GError **error)
{
    int64_t min = SP_POOL_MIN_DEFAULT, max = SP_POOL_MAX_DEFAULT, memory_mb = 0;
    if (!read_number("pool-min", options->min, MEMBERS_MAX, &min, error) ||
        !read_number("pool-max", options->max, MEMBERS_MAX, &max, error) ||
        !read_number("pool-memory-mb", options->memory_mb, MEMORY_MAX_MB, &memory_mb, error))
        return false;
    *ret = (struct sp_pool_numbers){(unsigned)min, (unsigned)max, memory_mb};
    return true;
}
