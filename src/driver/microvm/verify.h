/* The hashes of a saved form, checked beside other work. */
#pragma once

#include "driver/microvm/form.h"

struct sp_verify;

/* Begins to read the files (NULL-terminated names) of a form, which is borrowed until the end. */
struct sp_verify *sp_verify_start(const struct sp_form *form, const char *const *names);
/* Waits for the end. False: a file is damaged. Frees it; NULL is true. */
bool sp_verify_end(struct sp_verify *verify, GError **error);
