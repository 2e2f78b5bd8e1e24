#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

struct parse {
    const struct sp_option *table;
    void *out;
    char **argv;
    int argc;
    int at;
};

static void *value_of(const struct sp_option *option, void *out)
{
    return (char *)out + option->offset;
}

static bool bad_value(const struct sp_option *option, const char *text, const char *wanted,
                      GError **error)
{
    g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "--%s: \"%s\" is not %s", option->name,
                text, wanted);
    return false;
}

static bool set_flag(const struct sp_option *option, void *out, const char *text, GError **error)
{
    if (text && strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return bad_value(option, text, "true or false", error);
    bool on = !text || strcmp(text, "true") == 0;
    *(bool *)value_of(option, out) = on != (option->kind == SP_OPTION_NEGATED);
    return true;
}

static bool set_int(const struct sp_option *option, void *out, const char *text, GError **error)
{
    gint64 number;
    if (!g_ascii_string_to_signed(text, 10, option->min, G_MAXINT64, &number, NULL)) {
        g_autofree char *wanted =
            g_strdup_printf("a whole number of at least %" G_GINT64_FORMAT, (gint64)option->min);
        return bad_value(option, text, wanted, error);
    }
    *(int64_t *)value_of(option, out) = number;
    return true;
}

static bool set_number(const struct sp_option *option, void *out, const char *text, GError **error)
{
    char *end = NULL;
    errno = 0;
    double number = g_ascii_strtod(text, &end);
    if (errno || end == text || *end || !isfinite(number) || number <= 0)
        return bad_value(option, text, "a number above 0", error);
    *(double *)value_of(option, out) = number;
    return true;
}

static void add_to_list(const struct sp_option *option, void *out, const char *text)
{
    char ***list = value_of(option, out);
    guint n = *list ? g_strv_length(*list) : 0;
    *list = g_renew(char *, *list, n + 2);
    (*list)[n] = g_strdup(text);
    (*list)[n + 1] = NULL;
}

static bool set_value(const struct sp_option *option, void *out, const char *text, GError **error)
{
    switch (option->kind) {
    case SP_OPTION_FLAG:
    case SP_OPTION_NEGATED:
        return set_flag(option, out, text, error);
    case SP_OPTION_INT:
        return set_int(option, out, text, error);
    case SP_OPTION_NUMBER:
        return set_number(option, out, text, error);
    case SP_OPTION_STRING:
        g_free(*(char **)value_of(option, out));
        *(char **)value_of(option, out) = g_strdup(text);
        return true;
    case SP_OPTION_LIST:
        add_to_list(option, out, text);
        return true;
    }
    g_assert_not_reached();
}

static bool takes_value(const struct sp_option *option)
{
    return option->kind != SP_OPTION_FLAG && option->kind != SP_OPTION_NEGATED;
}

/* The value of an option that needs one: what stands behind "=", or the next word. */
static const char *take_value(struct parse *p, const struct sp_option *option,
                              const char *inline_text, GError **error)
{
    if (inline_text)
        return inline_text;
    if (p->at + 1 < p->argc)
        return p->argv[++p->at];
    g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "--%s needs a value (%s)", option->name,
                option->value_name);
    return NULL;
}

static bool parse_long(struct parse *p, const char *word, GError **error)
{
    const char *equals = strchr(word, '=');
    size_t len = equals ? (size_t)(equals - word) : strlen(word);
    for (const struct sp_option *o = p->table; o->name; o++) {
        if (strlen(o->name) != len || strncmp(o->name, word, len) != 0)
            continue;
        const char *text = equals ? equals + 1 : NULL;
        if (takes_value(o) && !(text = take_value(p, o, text, error)))
            return false;
        return set_value(o, p->out, text, error);
    }
    g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "unknown option --%.*s", (int)len, word);
    return false;
}

static bool parse_letters(struct parse *p, const char *letters, GError **error)
{
    for (; *letters; letters++) {
        const struct sp_option *o = p->table;
        while (o->name && o->letter != *letters)
            o++;
        if (!o->name) {
            g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST, "unknown option -%c", *letters);
            return false;
        }
        if (!takes_value(o)) {
            if (!set_value(o, p->out, NULL, error))
                return false;
            continue;
        }
        const char *text = take_value(p, o, letters[1] ? letters + 1 : NULL, error);
        return text && set_value(o, p->out, text, error);
    }
    return true;
}

bool sp_options_parse(const struct sp_option *table, void *out, int argc, char **argv,
                      bool stop_at_operand, char ***ret_operands, GError **error)
{
    struct parse p = {.table = table, .out = out, .argv = argv, .argc = argc};
    g_autoptr(GPtrArray) operands = g_ptr_array_new_with_free_func(g_free);
    bool only_operands = false;
    for (; p.at < argc; p.at++) {
        const char *word = argv[p.at];
        if (only_operands || word[0] != '-' || word[1] == '\0') {
            g_ptr_array_add(operands, g_strdup(word));
            only_operands = only_operands || stop_at_operand;
        } else if (strcmp(word, "--") == 0) {
            only_operands = true;
        } else if (word[1] == '-' ? !parse_long(&p, word + 2, error)
                                  : !parse_letters(&p, word + 1, error)) {
            return false;
        }
    }
    g_ptr_array_add(operands, NULL);
    *ret_operands = (char **)g_ptr_array_free(g_steal_pointer(&operands), FALSE);
    return true;
}

void sp_options_clear(const struct sp_option *table, void *out)
{
    for (const struct sp_option *o = table; o->name; o++) {
        if (o->kind == SP_OPTION_STRING)
            g_clear_pointer((char **)value_of(o, out), g_free);
        else if (o->kind == SP_OPTION_LIST)
            g_clear_pointer((char ***)value_of(o, out), g_strfreev);
    }
}
