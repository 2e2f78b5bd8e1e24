/* The operations on one VM; contracts in driver/driver.h. */
#pragma once

#include "driver/microvm/private.h"
#include "driver/microvm/qmp_client.h"
#include "driver/microvm/ram.h"

struct sp_vm_instance {
    struct sp_instance base;
    char *run_dir;
    int pidfd;
    int agent_fd;       /* the connection of create(), handed out once; −1 after that */
    struct sp_ram *ram; /* kept so that VMs woken later share it; NULL after an adoption */
    bool stopped; /* by pause() during a saving: nothing else can change it */
    struct sp_qmp *qmp; /* open only while it is being saved: QEMU serves one client at a time */
};

/* create.c */
struct sp_instance *sp_microvm_create(struct sp_driver *driver, const struct sp_driver_spec *spec,
                                      sp_step_fn step, void *user, GError **error);

/* instance.c */
struct sp_instance *sp_microvm_adopt(struct sp_driver *driver, const char *run_dir,
                                     bool *ret_paused, GError **error);
bool sp_microvm_destroy(struct sp_driver *driver, const char *run_dir, GError **error);
int sp_microvm_connect_agent(struct sp_instance *instance, GError **error);
int sp_microvm_pidfd(struct sp_instance *instance);
unsigned sp_microvm_slot(struct sp_instance *instance);
bool sp_microvm_claim(struct sp_instance *instance, const char *id, const char *run_dir,
                      const char *hostname, GError **error);
void sp_microvm_instance_free(struct sp_instance *instance);

/* A handle. Takes over pidfd and agent_fd (a connection to hand out first, or -1). */
struct sp_instance *sp_microvm_instance_new(struct sp_microvm *vm, const char *run_dir, int pidfd,
                                            int agent_fd);
/* Takes over the reference. */
void sp_microvm_instance_keep(struct sp_instance *instance, struct sp_ram *ram);

/* power.c */
bool sp_microvm_pause(struct sp_instance *instance, GError **error);
bool sp_microvm_resume(struct sp_instance *instance, GError **error);
/* "running", "paused", …; owned; NULL on failure. */
char *sp_microvm_status(struct sp_qmp *qmp, GError **error);

/* save.c */
struct sp_saving *sp_microvm_save_begin(struct sp_instance *instance,
                                        const struct sp_save_spec *spec, GError **error);
bool sp_microvm_save_capture(struct sp_saving *saving, GError **error);
bool sp_microvm_save_finish(struct sp_saving *saving, struct sp_saved_result *ret, sp_step_fn step,
                            void *user, GError **error);
void sp_microvm_save_free(struct sp_saving *saving);
