#include "cli/doctor_state.h"

#include <stdio.h>

#include "base/error.h"
#include "cli/findings.h"
#include "cli/inspect.h"
#include "cli/mend.h"
#include "cli/output.h"

static json_t *finding_json(const struct sp_finding *finding)
{
    json_t *object = json_pack("{s:s, s:o, s:o, s:b}", "kind", finding->kind, "name",
                               sp_json_text(finding->name), "what", sp_json_text(finding->what),
                               "mended", finding->mended);
    if (finding->hint)
        json_object_set_new(object, "hint", sp_json_text(finding->hint));
    return object;
}

static json_t *answer_text(bool answers, const char *detail)
{
    return answers ? json_string("answers") : sp_json_text(detail ? detail : "no answer");
}

json_t *sp_doctor_state(const char *state_dir, bool repair, bool *ret_consistent)
{
    g_autoptr(GError) error = NULL;
    *ret_consistent = true;
    SP_CLEANUP(sp_facts_free_p) struct sp_facts *facts = sp_facts_gather(state_dir, &error);
    if (!facts)
        return json_pack("{s:o, s:b, s:o, s:[]}", "dir", sp_json_text(state_dir), "looked", 0,
                         "detail", sp_json_text(error->message), "findings");
    sp_facts_ask(facts);
    g_autoptr(GPtrArray) findings = sp_findings_of(facts);
    *ret_consistent = repair ? sp_mend_all(facts, findings) : findings->len == 0;
    json_t *list = json_array();
    for (guint i = 0; i < findings->len; i++)
        json_array_append_new(list, finding_json(findings->pdata[i]));
    return json_pack("{s:o, s:b, s:o, s:o, s:o}", "dir", sp_json_text(state_dir), "looked", 1,
                     "server", answer_text(facts->server_answers, facts->server_detail), "worker",
                     answer_text(facts->worker_answers, facts->worker_detail), "findings", list);
}

void sp_doctor_state_print(json_t *state)
{
    g_autofree char *dir = sp_output_text(state, "dir", NULL);
    if (!json_is_true(json_object_get(state, "looked"))) {
        g_autofree char *detail = sp_output_text(state, "detail", NULL);
        printf("\n%s was not looked at: %s\n", dir, detail);
        return;
    }
    g_autofree char *server = sp_output_text(state, "server", NULL);
    g_autofree char *worker = sp_output_text(state, "worker", NULL);
    json_t *findings = json_object_get(state, "findings");
    printf("\nWhat %s has on this host (server: %s; worker: %s):\n", dir, server, worker);
    if (json_array_size(findings) == 0)
        puts("ok       everything belongs to something");
    size_t i;
    json_t *finding;
    json_array_foreach(findings, i, finding)
    {
        g_autofree char *kind = sp_output_text(finding, "kind", NULL);
        g_autofree char *name = sp_output_text(finding, "name", NULL);
        g_autofree char *what = sp_output_text(finding, "what", NULL);
        g_autofree char *hint = sp_output_text(finding, "hint", NULL);
        bool mended = json_is_true(json_object_get(finding, "mended"));
        bool mendable = !json_object_get(finding, "hint");
        printf("%-8s %s %s: %s", mended ? "mended" : mendable ? "WRONG" : "LEFT", kind, name, what);
        if (!mendable)
            printf(" (%s)", hint);
        else if (!mended)
            printf(" (space doctor --repair mends it)");
        putchar('\n');
    }
}
