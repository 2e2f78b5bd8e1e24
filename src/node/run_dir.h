/*
 * What the worker itself keeps in a run directory beside the driver's record: the commit points of
 * docs/lifecycle.md.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* It has run a user's command once (node/making.c). */
#define SP_RUN_READY "ready"
/* The user's processes were stopped by us, or are about to be (node/standstill.h). */
#define SP_RUN_HELD "held"
/* Its truth is the saved form of its id. */
#define SP_RUN_SUSPENDED "suspended"
/* Generation of the last rollback that was done or has failed. */
#define SP_RUN_ROLLBACK "rollback"

/* Writes a file in one step; with durable it has reached the disk when this returns, and so has its
 * name. */
bool sp_run_dir_put(const char *run_dir, const char *name, const char *text, bool durable,
                    GError **error);
/* Removes a file; true when there was none. */
bool sp_run_dir_drop(const char *run_dir, const char *name, bool durable, GError **error);
bool sp_run_dir_has(const char *run_dir, const char *name);
/* Whether sp_run_dir_has() can tell of all the marks: none that is there looks as if it were not. */
bool sp_run_dir_can_tell(const char *run_dir, GError **error);
/* A small file's text; NULL when there is none or it cannot be read. Free with g_free(). */
char *sp_run_dir_get(const char *run_dir, const char *name);

struct sp_run_suspended {
    int slot;    /* -1: not readable */
    bool memory; /* its form holds its memory */
};
bool sp_run_dir_put_suspended(const char *run_dir, const struct sp_run_suspended *suspended,
                              GError **error);
/* False: it is not suspended. */
bool sp_run_dir_get_suspended(const char *run_dir, struct sp_run_suspended *ret);
/* 0: none. */
int64_t sp_run_dir_rollback(const char *run_dir);

/* Removes what an instance has left in it, after the driver's destroy(): all but the commit points
 * and the marks of sessions. */
bool sp_run_dir_clean(const char *run_dir, GError **error);
