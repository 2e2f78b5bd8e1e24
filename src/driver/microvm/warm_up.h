/* What is run in a guest before its state is saved. */
#pragma once

#include "driver/microvm/boot_talk.h"

/* Identity, the template's ready command (which must succeed), interpreters, and the lock again.
 * config: text of the template's config.json. */
bool sp_warm_up(struct sp_boot_talk *talk, const char *config, size_t len, GError **error);
