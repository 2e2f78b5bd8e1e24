/*
 * Reading messages of the worker protocol: unknown fields are ignored (fields may be added within a
 * version), known ones must have their type. The getters name the field in *error.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/store.h"

#define SP_WORKER_MAX_ITEMS 10000

/* Absent and null give NULL or 0 unless required. Texts are borrowed from the object. */
bool sp_worker_text(json_t *object, const char *name, bool required, const char **ret,
                    GError **error);
bool sp_worker_integer(json_t *object, const char *name, bool required, int64_t *ret,
                       GError **error);
/* A number of at least 0; absent and null give 0. */
bool sp_worker_number(json_t *object, const char *name, double *ret, GError **error);
/* An array of at most SP_WORKER_MAX_ITEMS; borrowed. */
bool sp_worker_array(json_t *object, const char *name, json_t **ret, GError **error);
/* The text of a member that is an object or array; NULL when absent. Caller frees. */
char *sp_worker_dump(json_t *object, const char *name);
/* The code and message of the member "error"; both NULL when there is none. Borrowed. */
void sp_worker_error(json_t *object, const char **ret_code, const char **ret_message);
/* One session as a worker reports it (worker_reports.c). *ret borrows from item and from texts,
 * which takes the strings that had to be made. */
bool sp_worker_session_report(json_t *item, struct sp_session_report *ret, GPtrArray *texts,
                              GError **error);
