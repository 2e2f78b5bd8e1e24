/* What `space doctor` makes of what it has found: which things are wrong, and which may be mended.
 */
#include "cli/findings.h"

#include <string.h>

#include "base/json.h"

#define SBX "sbx_00000000000000000000000001"
#define SBX2 "sbx_00000000000000000000000002"
#define SNP "snp_00000000000000000000000001"
#define OLD (2 * SP_FINDING_TMP_AGE_MS)
#define LONG_AGO "2020-01-01T00:00:00.000Z"

/* What the server says of SBX and SNP in a case. */
enum says { STOPPED, SILENT, NEVER_HEARD, IS_DELETED, IS_RUNNING, IS_SUSPENDED };

static struct sp_facts *facts_of(enum says says)
{
    struct sp_facts *facts = sp_facts_new("/state");
    facts->daemons_run = says != STOPPED;
    facts->server_answers = says > SILENT;
    if (!facts->server_answers)
        return facts;
    facts->sandboxes = json_object();
    facts->snapshots = json_object();
    facts->known = json_object();
    const char *state = says == IS_RUNNING ? "running" : "suspended";
    if (says >= IS_RUNNING) {
        json_object_set_new(
            facts->sandboxes, SBX,
            json_pack("{s:s, s:s, s:s}", "id", SBX, "state", state, "created_at", LONG_AGO));
        json_object_set_new(
            facts->snapshots, SNP,
            json_pack("{s:s, s:s, s:s}", "id", SNP, "state", "ready", "created_at", LONG_AGO));
    }
    static const char *const ids[] = {SBX, SNP};
    for (size_t i = 0; i < G_N_ELEMENTS(ids); i++) {
        json_object_set_new(
            facts->known, ids[i],
            says == NEVER_HEARD
                ? json_pack("{s:b}", "unknown", 1)
                : json_pack("{s:s}", "desired_state", says == IS_DELETED ? "deleted" : "running"));
    }
    return facts;
}

static struct sp_thing *thing(struct sp_facts *facts, enum sp_thing_kind kind, const char *name,
                              int64_t age_ms)
{
    g_autofree char *path = g_build_filename("/state", name, NULL);
    struct sp_thing *t = sp_facts_add_thing(facts, kind, name, path);
    t->age_ms = age_ms;
    return t;
}

static struct sp_owner *owner(struct sp_facts *facts, const char *dir, const char *text)
{
    struct sp_owner *o = sp_facts_add_owner(facts, dir, "/state/run");
    o->text = g_strdup(text);
    o->id = text ? g_strdup(dir) : NULL;
    o->age_ms = OLD;
    return o;
}

/* What is said of a name as a thing of that kind: "." nothing is wrong, "m" it may be mended, "l"
 * it is left. Frees the facts. */
static char verdict(struct sp_facts *facts, const char *kind, const char *name)
{
    g_autoptr(GPtrArray) findings = sp_findings_of(facts);
    char answer = '.';
    for (guint i = 0; i < findings->len; i++) {
        struct sp_finding *finding = findings->pdata[i];
        g_assert_nonnull(finding->what);
        if (strcmp(finding->kind, kind) == 0 && strcmp(finding->name, name) == 0)
            answer = finding->hint ? 'l' : 'm';
    }
    sp_facts_free(facts);
    return answer;
}

static void layer_without_a_record(struct sp_facts *facts)
{
    thing(facts, SP_THING_LAYER, SBX, OLD);
}

static void disk_without_a_record(struct sp_facts *facts)
{
    thing(facts, SP_THING_LAYER, SBX ".disk", OLD);
}

static void young_layer(struct sp_facts *facts)
{
    thing(facts, SP_THING_LAYER, SBX, SP_FINDING_AGE_MS - 1);
}

static void layer_of_a_run_directory(struct sp_facts *facts)
{
    thing(facts, SP_THING_LAYER, SBX, OLD);
    owner(facts, SBX, NULL);
}

static void layer_that_a_record_names(struct sp_facts *facts)
{
    thing(facts, SP_THING_LAYER, SBX, OLD);
    owner(facts, SBX2, "[container]\nlayer=" SBX "\n");
}

static void empty_group(struct sp_facts *facts)
{
    thing(facts, SP_THING_CGROUP, SBX, OLD);
}

static void busy_group(struct sp_facts *facts)
{
    thing(facts, SP_THING_CGROUP, SBX, OLD)->busy = true;
}

static void stray_mount(struct sp_facts *facts)
{
    thing(facts, SP_THING_MOUNT, SBX, -1);
}

static void saved_without_a_run_directory(struct sp_facts *facts)
{
    thing(facts, SP_THING_SAVED, SBX, OLD);
}

static void saved_of_a_suspended_one(struct sp_facts *facts)
{
    thing(facts, SP_THING_SAVED, SBX, OLD);
    owner(facts, SBX, NULL)->suspended = true;
}

static void saved_of_one_that_is_not(struct sp_facts *facts)
{
    thing(facts, SP_THING_SAVED, SBX, OLD);
    owner(facts, SBX, "[instance]");
}

static void saved_snapshot(struct sp_facts *facts)
{
    thing(facts, SP_THING_SAVED, SNP, OLD);
}

static void tmp(struct sp_facts *facts)
{
    thing(facts, SP_THING_TMP, SBX, OLD);
}

static void young_tmp(struct sp_facts *facts)
{
    thing(facts, SP_THING_TMP, SBX, SP_FINDING_AGE_MS + 1);
}

static void empty_run_directory(struct sp_facts *facts)
{
    owner(facts, SBX, NULL);
}

static void run_directory_whose_process_is_gone(struct sp_facts *facts)
{
    owner(facts, SBX, "[instance]")->process_gone = true;
}

static void run_directory_whose_process_may_live(struct sp_facts *facts)
{
    owner(facts, SBX, "[instance]");
}

static void run_directory_that_owns(struct sp_facts *facts)
{
    owner(facts, SBX, "[instance]")->process_gone = true;
    thing(facts, SP_THING_CGROUP, SBX, OLD);
}

static void young_run_directory(struct sp_facts *facts)
{
    owner(facts, SBX, NULL)->age_ms = 0;
}

static void suspended_without_its_form(struct sp_facts *facts)
{
    owner(facts, SBX, NULL)->suspended = true;
}

static void nothing(struct sp_facts *facts)
{
}

static void test_table(void)
{
    static const struct {
        void (*fill)(struct sp_facts *facts);
        const char *kind, *name;
        const char *verdicts; /* stopped, silent, never heard, deleted, running, suspended */
    } rows[] = {
        {nothing, "sandbox row", SBX, "....ll"},
        {nothing, "snapshot row", SNP, "....ll"},
        {layer_without_a_record, "layer", SBX, "mmmmll"},
        {disk_without_a_record, "layer", SBX ".disk", "mmmmll"},
        {young_layer, "layer", SBX, "m....."},
        {layer_of_a_run_directory, "layer", SBX, "......"},
        {layer_that_a_record_names, "layer", SBX, "......"},
        {empty_group, "cgroup", SBX, "mmmmll"},
        {busy_group, "cgroup", SBX, "lllmll"},
        {stray_mount, "mount", SBX, "mllmll"},
        {saved_without_a_run_directory, "saved form", SBX, "lllmll"},
        {saved_of_a_suspended_one, "saved form", SBX, "......"},
        {saved_of_one_that_is_not, "saved form", SBX, ".lllml"},
        {saved_snapshot, "saved form", SNP, "..lm.."},
        {saved_snapshot, "snapshot row", SNP, "......"},
        {tmp, "tmp", SBX, "mmmmmm"},
        {young_tmp, "tmp", SBX, "m....."},
        {empty_run_directory, "run directory", SBX, "..mm.."},
        {run_directory_whose_process_is_gone, "run directory", SBX, "..lm.."},
        {run_directory_whose_process_may_live, "run directory", SBX, "..ll.."},
        {run_directory_that_owns, "run directory", SBX, "..ll.."},
        {young_run_directory, "run directory", SBX, "......"},
        {suspended_without_its_form, "sandbox row", SBX, "....ll"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        for (int says = STOPPED; says <= IS_SUSPENDED; says++) {
            struct sp_facts *facts = facts_of((enum says)says);
            rows[i].fill(facts);
            char found = verdict(facts, rows[i].kind, rows[i].name);
            if (found != rows[i].verdicts[says])
                g_test_message("row %zu, says %d", i, says);
            g_assert_cmpint(found, ==, rows[i].verdicts[says]);
        }
    }
}

static void test_two_owners(void)
{
    struct sp_facts *facts = facts_of(STOPPED);
    owner(facts, SBX, "[instance]")->slot = 3;
    owner(facts, SBX2, "[instance]")->slot = 3;
    g_assert_cmpint(verdict(facts, "two owners", SBX ", " SBX2), ==, 'l');
    facts = facts_of(STOPPED);
    owner(facts, SBX, "[instance]")->cgroup = g_strdup("same");
    owner(facts, SBX2, "[instance]")->cgroup = g_strdup("same");
    g_assert_cmpint(verdict(facts, "two owners", SBX ", " SBX2), ==, 'l');
    facts = facts_of(STOPPED);
    owner(facts, SBX, "[instance]")->slot = 3;
    owner(facts, SBX2, "[instance]")->slot = 4;
    g_assert_cmpint(verdict(facts, "two owners", SBX ", " SBX2), ==, '.');
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/findings/table", test_table);
    g_test_add_func("/findings/two-owners", test_two_owners);
    return g_test_run();
}
