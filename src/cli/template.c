/* `space template build|ls|rm`. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/time.h"
#include "cli/client.h"
#include "cli/client_options.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/recipe.h"
#include "cli/verbs.h"

#define BUILD_TIMEOUT_MS (45 * 60 * INT64_C(1000))
#define POLL_US 300000
#define LOG_TAIL_BYTES 4000

struct build_options {
    struct sp_client_options client; /* first */
    char *tag;
    bool no_cache;
    bool quiet;
};

#define OFFSET(member) offsetof(struct build_options, member)
const struct sp_option sp_template_build_options[] = {
    {"tag", 0, SP_OPTION_STRING, OFFSET(tag), "TAG", "tag of the template (default latest)", 0},
    {"no-cache", 0, SP_OPTION_FLAG, OFFSET(no_cache), NULL,
     "build although there is one of this recipe", 0},
    {"quiet", 'q', SP_OPTION_FLAG, OFFSET(quiet), NULL, "print the digest only", 0},
    SP_OPTIONS_CLIENT,
    {0},
};
const size_t sp_template_build_options_bytes = sizeof(struct build_options);

const struct sp_option sp_template_ls_options[] = {SP_OPTIONS_CLIENT, {0}};
const size_t sp_template_ls_options_bytes = sizeof(struct sp_client_options);
const struct sp_option sp_template_rm_options[] = {SP_OPTIONS_CLIENT, {0}};
const size_t sp_template_rm_options_bytes = sizeof(struct sp_client_options);

/* "/v1/templates/<name:tag or digest>"; free with g_free(). */
static char *template_path(const char *ref)
{
    g_autofree char *escaped = g_uri_escape_string(ref, ":", FALSE);
    return g_strconcat("/v1/templates/", escaped, NULL);
}

/* --- build */
struct follow {
    struct sp_client *api;
    char *log_path;
    gsize shown; /* bytes of the log that are printed */
    char *doing; /* its last line; owned */
    bool terminal, quiet;
    int64_t started_ms;
};

/* The text of the build log: text/plain, or {"log": "…"}. */
static char *log_text(struct follow *f)
{
    g_autoptr(GBytes) bytes = sp_client_get_bytes(f->api, f->log_path, NULL);
    gsize len = 0;
    const char *raw = bytes ? g_bytes_get_data(bytes, &len) : NULL;
    if (!len)
        return g_strdup("");
    g_autoptr(json_t) json = raw[0] == '{' ? sp_json_parse(raw, len, NULL) : NULL;
    json_t *inner = json_object_get(json, "log");
    if (json_is_string(inner))
        return g_strdup(json_string_value(inner));
    return g_utf8_make_valid(raw, (gssize)len);
}

/* Prints what the log has more than before. A terminal has one line that shows what is being done;
 * elsewhere the stages are printed, not the indented details of the programs that work for them. */
static void show_progress(struct follow *f)
{
    if (f->quiet)
        return;
    g_autofree char *text = log_text(f);
    gsize len = strlen(text);
    if (f->shown > len)
        f->shown = 0; /* a log of another build */
    char *line = text + f->shown, *end;
    for (; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        if (!f->terminal && *line != ' ')
            fprintf(stderr, "%s\n", line);
        g_free(f->doing);
        f->doing = g_strdup(g_strchug(line));
    }
    f->shown = (gsize)(line - text);
    if (f->terminal)
        fprintf(stderr, "\r\033[Kbuilding, %" G_GINT64_FORMAT " s: %.60s",
                (gint64)((sp_time_monotonic_ms() - f->started_ms) / 1000),
                f->doing ? f->doing : "");
    fflush(stderr);
}

static json_t *follow_build(struct follow *f, json_t *operation, struct sp_interrupt *interrupt,
                            GError **error)
{
    struct sp_client_cancel cancel = {sp_interrupt_cancelled, interrupt};
    const char *id = json_string_value(json_object_get(operation, "id"));
    g_autofree char *path = g_strconcat("/v1/operations/", id ? id : "none", NULL);
    g_autoptr(json_t) now = json_incref(operation);
    while (sp_time_monotonic_ms() - f->started_ms < BUILD_TIMEOUT_MS &&
           !sp_interrupt_cancelled(interrupt)) {
        const char *state = json_string_value(json_object_get(now, "state"));
        if (g_strcmp0(state, "pending") != 0 && g_strcmp0(state, "running") != 0)
            break;
        show_progress(f);
        g_usleep(POLL_US);
        json_t *next = sp_client_get(f->api, path, error);
        if (!next)
            return NULL;
        json_decref(now);
        now = next;
    }
    show_progress(f);
    if (f->terminal && !f->quiet)
        fputs("\r\033[K", stderr);
    return sp_client_wait_operation(f->api, now, 0, cancel, error);
}

/* After a failure: the end of the whole log, details included. */
static void say_end_of_log(struct follow *f)
{
    g_autofree char *text = log_text(f);
    gsize len = strlen(text);
    fputs(len > LOG_TAIL_BYTES ? text + len - LOG_TAIL_BYTES : text, stderr);
}

static json_t *build_body(const struct build_options *o, const char *what, char **ret_ref,
                          GError **error)
{
    g_autofree char *name = NULL;
    json_t *recipe = sp_recipe_load(what, &name, error);
    if (!recipe)
        return NULL;
    const char *tag = o->tag ? o->tag : "latest";
    *ret_ref = g_strdup_printf("%s:%s", name, tag);
    json_t *body = json_object();
    json_object_set_new(body, "name", json_string(name));
    json_object_set_new(body, "tag", sp_json_text(tag));
    json_object_set_new(body, "recipe", recipe);
    if (o->no_cache)
        json_object_set_new(body, "no_cache", json_true());
    return body;
}

static int print_built(struct sp_client *api, const char *ref, bool json, GError **error)
{
    g_autofree char *path = template_path(ref);
    g_autoptr(json_t) built = sp_client_get(api, path, error);
    if (!built)
        return sp_output_error(*error);
    g_autofree char *digest = sp_output_text(built, "digest", NULL);
    if (json)
        sp_output_json(built);
    else
        puts(digest);
    return sp_output_finish(0);
}

int sp_template_build_verb(const struct sp_invocation *invocation)
{
    const struct build_options *o = invocation->options;
    SP_CLEANUP(sp_interrupt_stop_p) struct sp_interrupt *interrupt = sp_interrupt_start();
    g_autoptr(GError) error = NULL;
    g_autofree char *ref = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->client.state, &error);
    g_autoptr(json_t) body = api ? build_body(o, invocation->operands[0], &ref, &error) : NULL;
    if (!body)
        return sp_output_error(error);
    struct sp_client_request request = {.method = "POST", .path = "/v1/templates", .json = body};
    g_autoptr(json_t) answer = sp_client_call(api, &request, NULL, &error);
    if (!answer)
        return sp_output_error(error);
    g_autofree char *path = template_path(ref);
    g_autofree char *log_path = g_strconcat(path, "/build-log", NULL);
    struct follow f = {.api = api,
                       .log_path = log_path,
                       .quiet = o->quiet || o->client.json,
                       .terminal = isatty(STDERR_FILENO) == 1,
                       .started_ms = sp_time_monotonic_ms()};
    json_t *operation = json_object_get(answer, "operation");
    g_autoptr(json_t) ended =
        operation ? follow_build(&f, operation, interrupt, &error) : json_incref(answer);
    g_free(f.doing);
    if (!ended) {
        say_end_of_log(&f);
        if (sp_interrupt_signal(interrupt))
            fputs("space: the build goes on in the server\n", stderr);
        return sp_interrupt_signal(interrupt) ? 128 + sp_interrupt_signal(interrupt)
                                              : sp_output_error(error);
    }
    return print_built(api, ref, o->client.json, &error);
}

/* --- ls, rm */
static void print_templates(json_t *list)
{
    static const char *const titles[] = {"NAME", "TAG", "DIGEST", "SIZE", "TIERS", "AGE", NULL};
    struct sp_text_table *table = sp_text_table_new(titles);
    size_t i;
    json_t *t;
    json_array_foreach(json_object_get(list, "items"), i, t)
    {
        json_t *size = json_object_get(t, "size_bytes");
        char *cells[] = {sp_output_text(t, "name", NULL),
                         sp_output_text(t, "tag", NULL),
                         sp_output_text(t, "digest", NULL),
                         json_is_integer(size) ? g_format_size((guint64)json_integer_value(size))
                                               : g_strdup("-"),
                         sp_output_text(t, "tiers", NULL),
                         sp_output_age(json_object_get(t, "created_at"))};
        sp_text_table_add(table, cells);
    }
    sp_text_table_print(table);
}

int sp_template_ls_verb(const struct sp_invocation *invocation)
{
    const struct sp_client_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->state, &error);
    g_autoptr(json_t) list = api ? sp_client_list(api, "/v1/templates", &error) : NULL;
    if (!list)
        return sp_output_error(error);
    if (o->json)
        sp_output_json(list);
    else
        print_templates(list);
    return sp_output_finish(0);
}

int sp_template_rm_verb(const struct sp_invocation *invocation)
{
    const struct sp_client_options *o = invocation->options;
    g_autoptr(GError) error = NULL;
    SP_CLEANUP(sp_client_free_p) struct sp_client *api = sp_client_open(o->state, &error);
    if (!api)
        return sp_output_error(error);
    bool all = true;
    for (char **ref = invocation->operands; *ref; ref++) {
        g_autofree char *path = template_path(*ref);
        struct sp_client_request request = {.method = "DELETE", .path = path, .wait_s = 30};
        g_autoptr(GError) cause = NULL;
        g_autoptr(json_t) answer = sp_client_call(api, &request, NULL, &cause);
        if (!answer)
            sp_output_error(cause);
        else if (o->json)
            sp_output_json(answer);
        else
            puts(*ref);
        all = all && answer;
    }
    return sp_output_finish(all ? 0 : SP_EXIT_PLATFORM);
}
