/* Times and durations in the forms of the API. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SP_TIME_TEXT 32

/* Milliseconds since the epoch (CLOCK_REALTIME), and of CLOCK_MONOTONIC. */
int64_t sp_time_now_ms(void);
int64_t sp_time_monotonic_ms(void);
int64_t sp_time_monotonic_us(void);

/* RFC 3339 in UTC with milliseconds: "2026-11-29T18:00:00.123Z". */
void sp_time_format(int64_t realtime_ms, char ret_text[SP_TIME_TEXT]);

/* Parses "250ms", "30s", "10m", "6h", "2d": digits and one unit. false: anything else, or more than
 * 10 years. */
bool sp_duration_parse(const char *text, int64_t *ret_ms);
/* The shortest such form, in whole units: 90000 → "90s". At least 24 bytes. */
void sp_duration_format(int64_t ms, char ret_text[SP_TIME_TEXT]);
