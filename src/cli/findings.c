#include "cli/findings.h"

#include <string.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"

static void free_finding(void *data)
{
    struct sp_finding *finding = data;
    g_free(finding->name);
    g_free(finding->what);
    g_free(finding->hint);
    g_free(finding);
}

static void add(GPtrArray *findings, const char *kind, const char *name,
                const struct sp_thing *thing, const char *what, const char *hint)
{
    struct sp_finding *finding = g_new0(struct sp_finding, 1);
    finding->kind = kind;
    finding->name = g_strdup(name);
    finding->thing = thing;
    finding->what = g_strdup(what);
    finding->hint = g_strdup(hint);
    g_ptr_array_add(findings, finding);
}

static bool old_enough(const struct sp_facts *facts, int64_t age_ms, int64_t wanted_ms)
{
    return !facts->daemons_run || age_ms >= wanted_ms;
}

/* The run directory of that name, or one whose record has the name anywhere in it: rather an owner
 * too many than one too few. */
static const struct sp_owner *owner_of(const struct sp_facts *facts, const char *name)
{
    for (guint i = 0; i < facts->owners->len; i++) {
        const struct sp_owner *owner = facts->owners->pdata[i];
        if (strcmp(owner->dir, name) == 0 || (owner->text && strstr(owner->text, name)))
            return owner;
    }
    return NULL;
}

enum word {
    NOT_ASKED, /* nothing is known */
    UNKNOWN,   /* the server has never heard of it */
    LIVE,
    DELETED,
};

/* What the server says of a sandbox or snapshot. */
static enum word server_says(const struct sp_facts *facts, const char *id)
{
    if (!facts->server_answers)
        return NOT_ASKED;
    json_t *row = json_object_get(facts->sandboxes, id);
    if (!row)
        row = json_object_get(facts->snapshots, id);
    if (row) /* nothing stays of one that has failed (docs/worker-protocol.md) */
        return g_strcmp0(json_string_value(json_object_get(row, "state")), "failed") == 0 ? DELETED
                                                                                          : LIVE;
    json_t *known = json_object_get(facts->known, id);
    const char *desired = json_string_value(json_object_get(known, "desired_state"));
    if (!known || json_is_true(json_object_get(known, "unknown")) || !desired)
        return UNKNOWN;
    return strcmp(desired, "deleted") == 0 ? DELETED : LIVE;
}

static const char *word_hint(enum word word)
{
    switch (word) {
    case NOT_ASKED:
        return "left alone: the server was not asked whether it is deleted";
    case UNKNOWN:
        return "left alone: the server has never heard of it, which is no proof";
    case LIVE:
        return "left alone: the server has it";
    case DELETED:
        return NULL;
    }
    return NULL;
}

/* Mounts, groups, layers: made after the record that names them, gone before it. */
static void look_at_resource(const struct sp_facts *facts, const struct sp_thing *thing,
                             GPtrArray *findings)
{
    if (owner_of(facts, thing->owner))
        return;
    bool aged =
        thing->kind == SP_THING_MOUNT ? true : old_enough(facts, thing->age_ms, SP_FINDING_AGE_MS);
    if (!aged)
        return;
    enum word word = server_says(facts, thing->owner);
    const char *hint = NULL;
    if (word == LIVE)
        hint = word_hint(word);
    else if (thing->busy && word != DELETED)
        hint = "left alone: processes run in it";
    else if (thing->kind == SP_THING_MOUNT && facts->daemons_run && word != DELETED)
        hint = "left alone while the worker runs: the age of a mount is not known";
    add(findings, sp_thing_kind_name(thing->kind), thing->name, thing,
        thing->busy ? "no record names it, but processes run in it" : "no record names it", hint);
}

static void look_at_saved_sandbox(const struct sp_facts *facts, const struct sp_thing *thing,
                                  GPtrArray *findings)
{
    const struct sp_owner *owner = owner_of(facts, thing->owner);
    if (owner && owner->suspended)
        return;
    json_t *row = json_object_get(facts->sandboxes, thing->owner);
    const char *state = json_string_value(json_object_get(row, "state"));
    if (owner) {
        bool runs = g_strcmp0(state, "running") == 0;
        if (facts->daemons_run)
            add(findings, "saved form", thing->name, thing,
                "its sandbox is not suspended: a suspend or wake was cut short",
                runs ? NULL : "left alone: the server does not say that the sandbox runs");
        return; /* else the worker removes it when it starts */
    }
    add(findings, "saved form", thing->name, thing, "there is no run directory of its sandbox",
        word_hint(server_says(facts, thing->owner)));
}

static void look_at_saved(const struct sp_facts *facts, const struct sp_thing *thing,
                          GPtrArray *findings)
{
    if (!old_enough(facts, thing->age_ms, SP_FINDING_AGE_MS))
        return;
    if (sp_id_valid(thing->owner, "sbx")) {
        look_at_saved_sandbox(facts, thing, findings);
        return;
    }
    enum word word = server_says(facts, thing->owner);
    if (word == DELETED)
        add(findings, "saved form", thing->name, thing, "the server says it is deleted", NULL);
    else if (word == UNKNOWN)
        add(findings, "saved form", thing->name, thing, "the server has no such snapshot",
            word_hint(word));
}

static void look_at_tmp(const struct sp_facts *facts, const struct sp_thing *thing,
                        GPtrArray *findings)
{
    if (old_enough(facts, thing->age_ms, SP_FINDING_TMP_AGE_MS))
        add(findings, "tmp", thing->name, thing, "half made or half removed, and nobody is at it",
            NULL);
}

static bool owns_something(const struct sp_facts *facts, const struct sp_owner *owner)
{
    for (guint i = 0; i < facts->things->len; i++) {
        const struct sp_thing *thing = facts->things->pdata[i];
        if (thing->kind != SP_THING_RUN && owner_of(facts, thing->owner) == owner)
            return true;
    }
    return false;
}

/* What stands in the way of taking a run directory away although its sandbox is deleted. */
static const char *run_hint(const struct sp_facts *facts, const struct sp_owner *owner)
{
    if (owns_something(facts, owner))
        return "left alone: the worker takes it down with what it owns when it starts again";
    if (owner->text && !owner->process_gone)
        return "left alone: its process may still run";
    return NULL;
}

static void look_at_owner(struct sp_facts *facts, const struct sp_owner *owner, GPtrArray *findings)
{
    if (owner->pool || !old_enough(facts, owner->age_ms, SP_FINDING_AGE_MS))
        return;
    if (owner->id && strcmp(owner->id, owner->dir) != 0)
        add(findings, "run directory", owner->dir, NULL, "its record names another sandbox",
            "left alone: two claim the same resources");
    enum word word = server_says(facts, owner->dir);
    if (word == LIVE || word == NOT_ASKED)
        return;
    struct sp_thing *thing = sp_facts_add_thing(facts, SP_THING_RUN, owner->dir, owner->path);
    bool empty = !owner->text && !owner->suspended && !owns_something(facts, owner);
    if (word == DELETED)
        add(findings, "run directory", owner->dir, thing, "the server says it is deleted",
            run_hint(facts, owner));
    else
        add(findings, "run directory", owner->dir, thing, "the server has never heard of it",
            empty ? NULL : word_hint(word));
}

static void look_at_pairs(const struct sp_facts *facts, GPtrArray *findings)
{
    for (guint i = 0; i < facts->owners->len; i++) {
        const struct sp_owner *a = facts->owners->pdata[i];
        for (guint j = i + 1; j < facts->owners->len; j++) {
            const struct sp_owner *b = facts->owners->pdata[j];
            bool group = a->cgroup && g_strcmp0(a->cgroup, b->cgroup) == 0;
            if (!group && (a->slot < 0 || a->slot != b->slot))
                continue;
            g_autofree char *name = g_strdup_printf("%s, %s", a->dir, b->dir);
            g_autofree char *what =
                group ? g_strdup_printf("both records name the control group %s", a->cgroup)
                      : g_strdup_printf("both records name slot %" G_GINT64_FORMAT, a->slot);
            add(findings, "two owners", name, NULL, what,
                "left alone: delete one of them (`space rm`)");
        }
    }
}

static bool row_is_old(json_t *row)
{
    const char *created = json_string_value(json_object_get(row, "created_at"));
    g_autoptr(GDateTime) then = created ? g_date_time_new_from_iso8601(created, NULL) : NULL;
    return then && sp_time_now_ms() - g_date_time_to_unix(then) * 1000 >= SP_FINDING_AGE_MS;
}

static bool has_saved(const struct sp_facts *facts, const char *id)
{
    for (guint i = 0; i < facts->things->len; i++) {
        const struct sp_thing *thing = facts->things->pdata[i];
        if (thing->kind == SP_THING_SAVED && strcmp(thing->name, id) == 0)
            return true;
    }
    return false;
}

static bool is_here(json_t *row)
{
    const char *node = json_string_value(json_object_get(row, "node"));
    return !node || strcmp(node, "local") == 0;
}

static void look_at_rows(const struct sp_facts *facts, GPtrArray *findings)
{
    const char *id;
    json_t *row;
    json_object_foreach(facts->sandboxes, id, row)
    {
        const char *state = json_string_value(json_object_get(row, "state"));
        bool lives = g_strcmp0(state, "running") == 0 || g_strcmp0(state, "paused") == 0 ||
                     g_strcmp0(state, "suspended") == 0;
        if (!lives || !is_here(row) || !row_is_old(row))
            continue;
        const struct sp_owner *owner = owner_of(facts, id);
        if (!owner)
            add(findings, "sandbox row", id, NULL, "nothing of it is on this host",
                "delete it: space rm");
        else if (owner->suspended && !has_saved(facts, id))
            add(findings, "sandbox row", id, NULL, "it is suspended, but its saved form is gone",
                "delete it: space rm");
    }
    json_object_foreach(facts->snapshots, id, row)
    {
        const char *state = json_string_value(json_object_get(row, "state"));
        if ((!state || strcmp(state, "ready") == 0) && is_here(row) && row_is_old(row) &&
            !has_saved(facts, id))
            add(findings, "snapshot row", id, NULL, "its saved form is not on this host",
                "delete it: space snapshot rm");
    }
}

GPtrArray *sp_findings_of(struct sp_facts *facts)
{
    GPtrArray *findings = g_ptr_array_new_with_free_func(free_finding);
    guint n_things = facts->things->len; /* look_at_owner() adds some */
    for (guint i = 0; i < n_things; i++) {
        const struct sp_thing *thing = facts->things->pdata[i];
        if (thing->kind == SP_THING_SAVED)
            look_at_saved(facts, thing, findings);
        else if (thing->kind == SP_THING_TMP)
            look_at_tmp(facts, thing, findings);
        else
            look_at_resource(facts, thing, findings);
    }
    for (guint i = 0; i < facts->owners->len; i++)
        look_at_owner(facts, facts->owners->pdata[i], findings);
    look_at_pairs(facts, findings);
    if (facts->server_answers)
        look_at_rows(facts, findings);
    return findings;
}
