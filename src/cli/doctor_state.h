/* The part of `space doctor` about the installation's own state: finds, mends, shows. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

/* {"dir","looked","detail"?,"server","worker","findings":[{"kind","name","what","hint"?,"mended"}]}
 * of an absolute state directory; mends with `repair`. *ret_consistent: nothing is left to do. A
 * directory that is not there, or not ours to read, is consistent. */
json_t *sp_doctor_state(const char *state_dir, bool repair, bool *ret_consistent);
void sp_doctor_state_print(json_t *state);
