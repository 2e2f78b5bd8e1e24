#include <string.h>

#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

#define SELECT                                                                                     \
    "SELECT t.name, t.tag, i.digest, i.config, i.size_bytes, i.created_at FROM template_images i " \
    "LEFT JOIN template_tags t ON t.digest = i.digest "

void sp_template_row_free(struct sp_template_row *template)
{
    if (!template)
        return;
    g_free(template->name);
    g_free(template->tag);
    g_free(template->digest);
    g_free(template->config);
    g_free(template);
}

static struct sp_template_row *from_row(struct sp_db_rows *rows)
{
    struct sp_template_row *t = g_new0(struct sp_template_row, 1);
    t->name = g_strdup(sp_db_text(rows, 0));
    t->tag = g_strdup(sp_db_text(rows, 1));
    t->digest = g_strdup(sp_db_text(rows, 2));
    t->config = g_strdup(sp_db_text(rows, 3));
    t->size_bytes = sp_db_int(rows, 4);
    t->created_at_ms = sp_db_int(rows, 5);
    return t;
}

static char *ref_text(const struct sp_template_ref *ref)
{
    return ref->digest[0] ? g_strdup(ref->digest) : g_strconcat(ref->name, ":", ref->tag, NULL);
}

static struct sp_template_row *get(struct sp_db_tx *tx, const struct sp_template_ref *ref,
                                   GError **error)
{
    g_autofree char *text = ref_text(ref);
    SP_DB_ROWS_AUTO *rows =
        ref->digest[0]
            ? sp_db_query(tx, error, SELECT "WHERE i.digest = $1 ORDER BY t.ref LIMIT 1", "t", text)
            : sp_db_query(tx, error, SELECT "WHERE t.ref = $1", "t", text);
    int got = rows ? sp_db_next(rows, error) : -1;
    if (got > 0)
        return from_row(rows);
    if (got == 0)
        g_set_error(error, SP_ERROR, SP_ERROR_NOT_FOUND, "there is no template %s", text);
    return NULL;
}

struct sp_template_row *sp_store_template_get(struct sp_store *store,
                                              const struct sp_template_ref *ref, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    return tx ? get(tx, ref, error) : NULL;
}

GPtrArray *sp_store_template_list(struct sp_store *store, const char *after_ref, unsigned limit,
                                  GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error, SELECT "WHERE t.ref > $1 ORDER BY t.ref LIMIT $2", "ti",
                    after_ref ? after_ref : "", (int64_t)limit);
    if (!rows)
        return NULL;
    g_autoptr(GPtrArray) list =
        g_ptr_array_new_with_free_func((GDestroyNotify)sp_template_row_free);
    int got;
    while ((got = sp_db_next(rows, error)) > 0)
        g_ptr_array_add(list, from_row(rows));
    return got < 0 ? NULL : g_steal_pointer(&list);
}

/* The image goes with its last name, unless sandboxes or snapshots use it. */
static bool drop_image(struct sp_db_tx *tx, const char *digest, GError **error)
{
    int64_t names, sandboxes, snapshots;
    if (!sp_tx_count(tx, "SELECT COUNT(*) FROM template_tags WHERE digest = $1", digest, &names,
                     error))
        return false;
    if (names > 0)
        return true;
    if (!sp_tx_count(
            tx, "SELECT COUNT(*) FROM sandboxes WHERE template_digest = $1 AND state <> 'deleted'",
            digest, &sandboxes, error) ||
        !sp_tx_count(tx,
                     "SELECT COUNT(*) FROM snapshots WHERE template_digest = $1 AND deleted_at = 0",
                     digest, &snapshots, error))
        return false;
    if (sandboxes + snapshots > 0) {
        g_set_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION,
                    "the template is in use by %" G_GINT64_FORMAT " sandbox%s and %" G_GINT64_FORMAT
                    " snapshot%s",
                    sandboxes, sandboxes == 1 ? "" : "es", snapshots, snapshots == 1 ? "" : "s");
        return false;
    }
    return sp_db_run(tx, NULL, error, "DELETE FROM template_images WHERE digest = $1", "t", digest);
}

/* The row of a build that succeeded stays as long as the database: it is the proof that the image
 * was known once. */
#define DELETED                                                                                    \
    "SELECT COUNT(*) FROM builds b WHERE b.digest = $1 AND b.state = 'succeeded'"                  \
    " AND NOT EXISTS (SELECT 1 FROM template_images i WHERE i.digest = $1)"                        \
    " AND NOT EXISTS (SELECT 1 FROM sandboxes s WHERE s.template_digest = $1"                      \
    " AND s.state <> 'deleted')"                                                                   \
    " AND NOT EXISTS (SELECT 1 FROM snapshots n WHERE n.template_digest = $1"                      \
    " AND n.deleted_at = 0)"                                                                       \
    " AND NOT EXISTS (SELECT 1 FROM builds p WHERE p.state IN ('pending', 'running'))"

char **sp_store_templates_deleted(struct sp_store *store, char *const *digests, GError **error)
{
    g_autoptr(GStrvBuilder) deleted = g_strv_builder_new();
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_READ, error);
    if (!tx)
        return NULL;
    for (; *digests; digests++) {
        int64_t builds;
        if (!sp_tx_count(tx, DELETED, *digests, &builds, error))
            return NULL;
        if (builds > 0)
            g_strv_builder_add(deleted, *digests);
    }
    return g_strv_builder_end(deleted);
}

bool sp_store_template_delete(struct sp_store *store, const struct sp_template_ref *ref,
                              const struct sp_idempotency *idem, GError **error)
{
    SP_DB_TX_AUTO *tx = sp_db_begin(store->db, SP_DB_WRITE, error);
    struct sp_replay replay;
    if (!tx || !sp_tx_replay_find(tx, idem, &replay, error))
        return false;
    if (replay.found)
        return true;
    struct sp_template_row *t = get(tx, ref, error);
    if (!t)
        return false;
    g_autofree char *digest = g_strdup(t->digest);
    sp_template_row_free(t);
    g_autofree char *text = ref_text(ref);
    return sp_db_run(tx, NULL, error, "DELETE FROM template_tags WHERE ref = $1 OR digest = $1",
                     "t", text) &&
           drop_image(tx, digest, error) && sp_tx_replay_record(tx, idem, "", "", error) &&
           sp_db_commit_auto(&tx, error);
}
