#include "microvm_saved_steps.h"

#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "disk/saved.h"

bool saved_skip(void)
{
    const char *why_not = world_missing();
    if (why_not)
        g_test_skip(why_not);
    return why_not != NULL;
}

char *saved_ask(struct sp_boot_talk *talk, const char *word, const char *a, const char *b)
{
    const char *argv[] = {"/bin/tool", word, a, b, NULL};
    g_autoptr(GError) error = NULL;
    GString *output = g_string_new(NULL);
    int exit_code = -2;
    sp_boot_talk_run(talk, argv, "root", 30000, output, &exit_code, &error);
    g_assert_no_error(error);
    if (exit_code != 0)
        g_test_message("%s: exit code %d: %s", word, exit_code, output->str);
    g_assert_cmpint(exit_code, ==, 0);
    return g_string_free(output, FALSE);
}

struct counter saved_look(struct sp_boot_talk *talk)
{
    struct counter c;
    char blob[8];
    g_autofree char *text = saved_ask(talk, "ask", NULL, NULL);
    g_assert_cmpint(sscanf(text, "%d %lu %7s", &c.pid, &c.count, blob), ==, 3);
    g_assert_cmpstr(blob, ==, "same");
    return c;
}

struct sp_boot_talk *saved_identify(struct world *w, struct clone *c)
{
    g_autoptr(GError) error = NULL;
    struct sp_boot_talk *talk = clone_talk(w, c);
    sp_boot_talk_identity(talk, 10000, &error);
    g_assert_no_error(error);
    return talk;
}

void saved_start_counter(struct sp_boot_talk *talk)
{
    const char *argv[] = {"/bin/tool", "counter", NULL};
    g_autoptr(GError) error = NULL;
    sp_boot_talk_start(talk, "counter", argv, "root", 5000, &error);
    g_assert_no_error(error);
}

/* A VM with a counter, a blob of 8 MiB in its memory and files that nobody has synced. */
struct sp_boot_talk *saved_origin(struct world *w, struct clone *c, unsigned slot, char **ret_files)
{
    clone_create(w, c, slot, NULL, NULL);
    struct sp_boot_talk *talk = saved_identify(w, c);
    saved_start_counter(talk);
    char *files = saved_ask(talk, "write", NULL, NULL);
    if (ret_files)
        *ret_files = files;
    else
        g_free(files);
    return talk;
}

bool saved_save(struct world *w, struct clone *c, struct sp_boot_talk *talk, const char *name,
                bool memory, bool durable, GError **error)
{
    const struct sp_driver_ops *ops = w->driver->ops;
    struct sp_save_spec spec = {.saved_name = name, .memory = memory, .durable = durable};
    struct sp_saved_result result = {0};
    GError *hold = NULL;
    struct sp_saving *saving = ops->save_begin(c->instance, &spec, error);
    if (!saving)
        return false;
    sp_boot_talk_hold(talk, !memory, 10000, &hold);
    g_assert_no_error(hold);
    bool ok = ops->pause(c->instance, error) && ops->save_capture(saving, error) &&
              ops->save_finish(saving, &result, NULL, NULL, error);
    ops->save_free(saving);
    g_assert_true(!ok || result.size_bytes >= 0);
    return ok;
}

void saved_go_on(struct world *w, struct clone *c, struct sp_boot_talk *talk)
{
    g_autoptr(GError) error = NULL;
    w->driver->ops->resume(c->instance, &error);
    g_assert_no_error(error);
    sp_boot_talk_release(talk, 10000, &error);
    g_assert_no_error(error);
}

void saved_must(struct world *w, struct clone *c, struct sp_boot_talk *talk, const char *name,
                bool memory, bool durable)
{
    g_autoptr(GError) error = NULL;
    saved_save(w, c, talk, name, memory, durable, &error);
    g_assert_no_error(error);
}

/* Another one from a saved form. */
void saved_make(struct world *w, struct clone *c, const char *name, enum sp_saved_use use,
                unsigned slot)
{
    g_autoptr(GError) error = NULL;
    clone_plan(w, c, NULL);
    c->saved_dir = sp_saved_path(w->volume, name);
    c->use = use;
    clone_try(w, c, slot, NULL, NULL, &error);
    g_assert_no_error(error);
    g_assert_nonnull(c->instance);
    g_clear_pointer((char **)&c->saved_dir, g_free);
}

unsigned saved_entries(struct world *w, const char *folder)
{
    g_autofree char *path = g_build_filename(sp_volume_dir(w->volume), folder, NULL);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    unsigned n = 0;
    for (const char *name; dir && (name = g_dir_read_name(dir));)
        n += name[0] != '.';
    return n;
}

void saved_end(struct world *w)
{
    g_assert_cmpuint(saved_entries(w, "layers"), ==, 0);
    g_assert_cmpuint(saved_entries(w, "saved"), ==, 0);
    g_assert_cmpuint(saved_entries(w, "tmp"), ==, 0);
    world_close(w);
}

void saved_remove(struct world *w, const char *name)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = sp_saved_path(w->volume, name);
    w->driver->ops->forget_saved(w->driver, dir);
    sp_saved_remove(w->volume, name, &error);
    g_assert_no_error(error);
}

void saved_adopt(struct world *w, struct clone *c, bool wanted)
{
    g_autoptr(GError) error = NULL;
    bool paused = !wanted;
    w->driver->ops->instance_free(c->instance);
    c->instance = w->driver->ops->adopt(w->driver, c->run_dir, &paused, &error);
    g_assert_no_error(error);
    g_assert_cmpint(paused, ==, wanted);
}

void saved_prestart(struct world *w, const char *name, unsigned slot, char **ret_run_dir)
{
    g_autoptr(GError) error = NULL;
    struct clone c;
    clone_plan(w, &c, NULL);
    c.name = name;
    struct sp_driver_spec spec = clone_spec(w, &c, slot);
    w->driver->ops->prestart(w->driver, &spec, &error);
    g_assert_no_error(error);
    *ret_run_dir = c.run_dir;
}
