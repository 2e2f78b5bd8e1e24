/* What the files about saved forms share. */
#pragma once

#include "disk/saved.h"

/* An open directory of the volume ("saved", "tmp"); the caller closes it. */
int sp_saved_open_folder(const struct sp_volume *volume, const char *folder, GError **error);
/* Letters, digits, '_' and '-': it becomes a file name. */
bool sp_saved_check_name(const char *name, GError **error);
/* As sp_saved_commit(); replace: a form of this name is put in its place, and removed. */
bool sp_saved_publish(struct sp_saved_staging *staging, const struct sp_saved_manifest *manifest,
                      bool replace, GError **error);
