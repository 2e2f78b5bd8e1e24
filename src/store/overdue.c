/* Operations that no worker has finished in time: each kind has a limit, and an end. */
#include "base/error.h"
#include "base/time.h"
#include "store/internal.h"

/* In milliseconds; literals, because they stand in SQL texts. */
#define SHORT "300000" /* 5 minutes: create, pause, wake, rollback */
#define LONG "1800000" /* 30 minutes: suspend, snapshot, fork, which write memory to a disk */
#define HOUR "3600000" /* deletes */
#define BUILD "7200000"
#define OPEN "state IN ('pending', 'running')"

/* A create that no worker has finished: the sandbox has failed, and its worker is told to remove
 * what it may have made of it. */
static bool fail_creates(struct sp_db_tx *tx, int64_t now, GPtrArray *topics, int64_t *n,
                         GError **error)
{
    g_autoptr(GPtrArray) ids = sp_tx_ids(tx, error,
                                         "SELECT sandbox_id FROM operations WHERE " OPEN " AND"
                                         " ((kind = 'create' AND created_at <= $1 - " SHORT ") OR"
                                         " (kind = 'fork' AND created_at <= $1 - " LONG "))",
                                         now);
    for (unsigned i = 0; ids && i < ids->len; i++) {
        struct sp_sandbox_row *s = NULL;
        int64_t revision;
        if (!sp_tx_sandbox(tx, ids->pdata[i], &s, error))
            return false;
        if (!s)
            continue;
        static const char why[] = "the worker did not finish it in time";
        bool ok = sp_tx_sandbox_fail(tx, s, "unavailable", why, why, NULL, topics, error) &&
                  sp_tx_bump_revision(tx, &revision, error) &&
                  sp_db_run(tx, NULL, error,
                            "UPDATE sandboxes SET generation = generation + 1, revision = $2"
                            " WHERE id = $1",
                            "ti", s->id, revision);
        sp_topics_add_node(topics, s->node);
        sp_sandbox_row_free(s);
        if (!ok)
            return false;
        ++*n;
    }
    return ids != NULL;
}

/* A change: the sandbox stays as it was seen last. */
static bool fail_changes(struct sp_db_tx *tx, int64_t now, GPtrArray *topics, int64_t *n,
                         GError **error)
{
    g_autoptr(GPtrArray) ids =
        sp_tx_ids(tx, error,
                  "SELECT s.id FROM sandboxes s JOIN operations o ON o.id = s.operation_id"
                  " WHERE o." OPEN " AND ((o.kind IN ('pause', 'wake', 'rollback') AND"
                  " o.created_at <= $1 - " SHORT ") OR"
                  " (o.kind = 'suspend' AND o.created_at <= $1 - " LONG "))",
                  now);
    for (unsigned i = 0; ids && i < ids->len; i++) {
        struct sp_sandbox_row *s = NULL;
        if (!sp_tx_sandbox(tx, ids->pdata[i], &s, error))
            return false;
        if (!s)
            continue;
        static const char why[] = "the worker did not finish it in time";
        bool ok = sp_tx_operation_end(tx, s->operation_id, "unavailable", why, NULL, error) &&
                  sp_tx_change_failed(tx, s, s->state, why, topics, error);
        sp_topics_add(topics, s->operation_id);
        sp_sandbox_row_free(s);
        if (!ok)
            return false;
        ++*n;
    }
    return ids != NULL;
}

static bool fail_snapshots(struct sp_db_tx *tx, int64_t now, GPtrArray *topics, int64_t *n,
                           GError **error)
{
    g_autoptr(GPtrArray) list = sp_snapshot_rows_read(
        sp_db_query(tx, error,
                    SP_SNAPSHOT_SELECT "WHERE n.state = 'creating' AND n.created_at <= $1 - " LONG,
                    "i", now),
        error);
    for (unsigned i = 0; list && i < list->len; i++, ++*n) {
        if (!sp_tx_snapshot_fail(tx, list->pdata[i], "unavailable",
                                 "the worker did not finish it in time", topics, error))
            return false;
    }
    return list != NULL;
}

/* A delete stays wanted; only its operation does not stay open for ever. */
static bool fail_others(struct sp_db_tx *tx, int64_t now, GPtrArray *topics, int64_t *n,
                        GError **error)
{
    g_autoptr(GPtrArray) ids =
        sp_tx_ids(tx, error,
                  "SELECT id FROM operations WHERE " OPEN " AND"
                  " ((kind IN ('delete', 'snapshot_delete') AND created_at <= $1 - " HOUR ") OR"
                  " (kind = 'template_build' AND created_at <= $1 - " BUILD "))",
                  now);
    for (unsigned i = 0; ids && i < ids->len; i++) {
        const char *id = ids->pdata[i];
        if (!sp_tx_operation_end(tx, id, "unavailable", "the worker has not finished it in time",
                                 NULL, error) ||
            !sp_db_run(tx, NULL, error,
                       "UPDATE builds SET state = 'failed', finished_at = $2"
                       " WHERE operation_id = $1",
                       "ti", id, now))
            return false;
        sp_topics_add(topics, id);
        ++*n;
    }
    return ids != NULL;
}

bool sp_sweep_overdue(struct sp_db_tx *tx, int64_t now, GPtrArray *topics, int64_t *n,
                      GError **error)
{
    /* Snapshots first: with one, the sandboxes that wait for it fail by its error. */
    return fail_snapshots(tx, now, topics, n, error) && fail_creates(tx, now, topics, n, error) &&
           fail_changes(tx, now, topics, n, error) && fail_others(tx, now, topics, n, error);
}

bool sp_sweep_overdue_next(struct sp_db_tx *tx, int64_t *ret, GError **error)
{
    SP_DB_ROWS_AUTO *rows =
        sp_db_query(tx, error,
                    "SELECT MIN(created_at + CASE"
                    " WHEN kind IN ('create', 'pause', 'wake', 'rollback') THEN " SHORT
                    " WHEN kind IN ('delete', 'snapshot_delete') THEN " HOUR
                    " WHEN kind = 'template_build' THEN " BUILD " ELSE " LONG " END)"
                    " FROM operations WHERE " OPEN,
                    "");
    if (!rows || sp_db_next(rows, error) != 1)
        return false;
    *ret = sp_db_text(rows, 0) ? sp_db_int(rows, 0) : G_MAXINT64;
    return true;
}
