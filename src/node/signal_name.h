/* Names of signals, as the API takes and shows them. */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Number of "SIGTERM" or "TERM"; 0 when there is no such signal. */
int sp_signal_from_name(const char *name);
/* Of a body {"signal": "SIGTERM"}. */
bool sp_signal_from_body(json_t *body, int32_t *ret_signal, GError **error);
