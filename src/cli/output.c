#include "cli/output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "cli/command.h"

int sp_output_error(const GError *error)
{
    fflush(stdout);
    const char *field = sp_error_field(error);
    g_autofree char *message = g_utf8_make_valid(error->message, -1);
    if (field)
        fprintf(stderr, "space: %s (%s, field %s)\n", message, sp_error_name(error), field);
    else
        fprintf(stderr, "space: %s (%s)\n", message, sp_error_name(error));
    return SP_EXIT_PLATFORM;
}

int sp_output_finish(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "space: cannot write the output: %s\n", g_strerror(errno));
    return SP_EXIT_PLATFORM;
}

void sp_output_json(const json_t *value)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_ENCODE_ANY);
    if (text) {
        puts(text);
        free(text);
    }
}

/* Names and messages come from other people: no escape sequence of theirs reaches the terminal. */
static char *printable(const char *text)
{
    char *copy = g_utf8_make_valid(text, -1);
    for (char *p = copy; *p; p++) {
        if (g_ascii_iscntrl(*p))
            *p = '?';
    }
    return copy;
}

/* "a,b" of ["a","b"]; NULL when it is anything else. */
static char *joined(const json_t *list)
{
    g_autoptr(GString) text = g_string_new(NULL);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *item = json_string_value(json_array_get(list, i));
        if (!item)
            return NULL;
        g_string_append_printf(text, "%s%s", i ? "," : "", item);
    }
    return json_array_size(list) ? g_strdup(text->str) : NULL;
}

char *sp_output_text(const json_t *object, const char *a, const char *b)
{
    const json_t *value = json_object_get(object, a);
    if (b)
        value = json_object_get(value, b);
    if (!value || json_is_null(value))
        return g_strdup("-");
    if (json_is_string(value))
        return printable(json_string_value(value));
    g_autofree char *list = joined(value);
    if (list)
        return printable(list);
    char *dumped = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    char *copy = printable(dumped ? dumped : "-");
    free(dumped);
    return copy;
}

void sp_output_members(const json_t *object)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        if (json_is_null(value) || (json_is_object(value) && json_object_size(value) == 0) ||
            (json_is_array(value) && json_array_size(value) == 0))
            continue;
        g_autofree char *text = sp_output_text(object, name, NULL);
        printf("%-18s %s\n", name, text);
    }
}

char *sp_output_age(const json_t *time)
{
    static const struct {
        int64_t seconds;
        char unit;
    } units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
    g_autoptr(GDateTime) then =
        json_is_string(time) ? g_date_time_new_from_iso8601(json_string_value(time), NULL) : NULL;
    if (!then)
        return g_strdup("-");
    int64_t seconds = MAX(0, sp_time_now_ms() / 1000 - g_date_time_to_unix(then));
    size_t i = 0;
    while (i + 1 < G_N_ELEMENTS(units) && seconds < units[i].seconds)
        i++;
    return g_strdup_printf("%" G_GINT64_FORMAT "%c", (gint64)(seconds / units[i].seconds),
                           units[i].unit);
}

struct sp_text_table {
    GPtrArray *rows; /* of char **; the first one holds the titles */
    guint n_columns;
};

static void free_row(void *row)
{
    g_strfreev(row);
}

struct sp_text_table *sp_text_table_new(const char *const *titles)
{
    struct sp_text_table *table = g_new0(struct sp_text_table, 1);
    table->rows = g_ptr_array_new_with_free_func(free_row);
    table->n_columns = g_strv_length((char **)titles);
    g_ptr_array_add(table->rows, g_strdupv((char **)titles));
    return table;
}

void sp_text_table_add(struct sp_text_table *table, char **cells)
{
    char **row = g_new0(char *, table->n_columns + 1);
    for (guint i = 0; i < table->n_columns; i++)
        row[i] = cells[i] ? cells[i] : g_strdup("-");
    g_ptr_array_add(table->rows, row);
}

void sp_text_table_print(struct sp_text_table *table)
{
    g_autofree glong *widths = g_new0(glong, table->n_columns);
    for (guint r = 0; r < table->rows->len; r++) {
        char **row = table->rows->pdata[r];
        for (guint i = 0; i < table->n_columns; i++)
            widths[i] = MAX(widths[i], g_utf8_strlen(row[i], -1));
    }
    for (guint r = 0; r < table->rows->len; r++) {
        char **row = table->rows->pdata[r];
        for (guint i = 0; i < table->n_columns; i++) {
            bool last = i + 1 == table->n_columns;
            int padding = last ? 0 : (int)(widths[i] - g_utf8_strlen(row[i], -1));
            printf("%s%*s", row[i], padding, "");
            fputs(last ? "\n" : "  ", stdout);
        }
    }
    g_ptr_array_unref(table->rows);
    g_free(table);
}
