/* The rate of the host's time-stamp counter. */
#pragma once

/* kHz, measured during 50 ms against CLOCK_MONOTONIC_RAW (good to a few ppm); 0 when the counter
 * does not run steadily, or on another architecture than x86-64. */
unsigned sp_tsc_measure_khz(void);
