/* Between fake.c (a sandbox), still.c (stopping it) and saved.c (keeping it). */
#pragma once

#include "driver/driver.h"
#include "driver/record.h"

#define FAKE_GROUP "fake" /* of the record's own values */
#define FAKE_SOCKET "agent.sock"

struct fake_driver {
    struct sp_driver base;
    struct sp_driver_env env;
};
struct fake {
    struct sp_instance base;
    char *run_dir;
    int pidfd;
};

/* --- still.c: a process and all below it, by SIGSTOP and SIGCONT */
bool sp_fake_stop(pid_t pid, GError **error);
bool sp_fake_continue(pid_t pid, GError **error);
bool sp_fake_is_stopped(pid_t pid);
bool sp_fake_pause(struct sp_instance *instance, GError **error);
bool sp_fake_resume(struct sp_instance *instance, GError **error);

/* --- saved.c */
struct sp_saving *sp_fake_save_begin(struct sp_instance *instance, const struct sp_save_spec *spec,
                                     GError **error);
bool sp_fake_save_capture(struct sp_saving *saving, GError **error);
bool sp_fake_save_finish(struct sp_saving *saving, struct sp_saved_result *ret, sp_step_fn step,
                         void *user, GError **error);
void sp_fake_save_free(struct sp_saving *saving);
void sp_fake_forget_saved(struct sp_driver *driver, const char *saved_dir);

/* Whether a saved form keeps the process of the record: then destroy() leaves it, stopped. */
bool sp_fake_is_kept(const struct fake_driver *driver, const struct sp_record *record);
/* Takes the process that the form keeps into the record and run directory of a sandbox, and lets it
 * go on. *ret_found false: the form keeps none, it is to be started afresh. */
bool sp_fake_take_kept(const struct fake_driver *driver, const struct sp_driver_spec *spec,
                       struct sp_record *record, bool *ret_found, GError **error);
