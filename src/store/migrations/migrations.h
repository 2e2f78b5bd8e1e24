/*
 * The schema, as numbered steps that only go forward. A released step is never changed; a change is
 * a new step. SQL in the dialect of db.h.
 */
#pragma once

struct sp_migration {
    int version;                   /* 1, 2, … */
    const char *const *statements; /* NULL-terminated, one statement each */
};
extern const struct sp_migration sp_migrations[]; /* ended by version 0 */
