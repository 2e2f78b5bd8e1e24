/* The operations on one VM; contracts in driver/driver.h. */
#pragma once

#include "driver/microvm/private.h"

/* create.c */
struct sp_instance *sp_microvm_create(struct sp_driver *driver, const struct sp_driver_spec *spec,
                                      sp_step_fn step, void *user, GError **error);

/* instance.c */
struct sp_instance *sp_microvm_adopt(struct sp_driver *driver, const char *run_dir, bool *ret_paused, GError **error);
bool sp_microvm_destroy(struct sp_driver *driver, const char *run_dir, GError **error);
int sp_microvm_connect_agent(struct sp_instance *instance, GError **error);
int sp_microvm_pidfd(struct sp_instance *instance);
void sp_microvm_instance_free(struct sp_instance *instance);

/* A handle. Takes over pidfd and agent_fd (a connection to hand out first, or -1). */
struct sp_instance *sp_microvm_instance_new(struct sp_microvm *vm, const char *run_dir, int pidfd,
                                            int agent_fd);
/* Path of a VM's writable disk. Free with g_free(). */
char *sp_microvm_disk_path(const struct sp_microvm *vm, const char *id);
