/* A worker's surroundings with real VMs, for microvm_live and microvm_bench. */
#pragma once

#include <glib.h>

#include "base/ids.h"
#include "disk/volume.h"
#include "driver/driver.h"
#include "driver/launcher.h"
#include "driver/microvm/boot_talk.h"

struct world {
    char *state_dir;
    char *template_dir;
    char *cgroup_root;
    struct sp_launcher *launcher;
    struct sp_volume *volume;
    struct sp_driver_env env;
    struct sp_driver *driver;
    bool borrowed; /* the state belongs to another process */
};

struct clone {
    char id[SP_ID_MAX];
    char *run_dir;
    struct sp_instance *instance;
    const char *name;      /* of its resources; NULL: the id */
    const char *saved_dir; /* to make it from */
    enum sp_saved_use use;
};

extern const struct sp_shape test_shape;

/* Why VMs cannot be tested here; NULL when they can. */
const char *world_missing(void);
/* A new state directory with a template: a small one of its own, or a copy of SPACE_TEST_TEMPLATE.
 */
void world_open(struct world *w);
/* A second worker on the state of another. */
void world_join(struct world *w, const char *state_dir);
/* Nothing may be left: no cgroup, no mount. */
void world_close(struct world *w);

/* Names a sandbox and makes its run directory. */
void clone_plan(struct world *w, struct clone *c, const char *id);
/* Makes it; every failure ends the test. */
void clone_create(struct world *w, struct clone *c, unsigned slot, sp_step_fn step, void *user);
struct sp_instance *clone_try(struct world *w, struct clone *c, unsigned slot, sp_step_fn step,
                              void *user, GError **error);
void clone_destroy(struct world *w, struct clone *c);
/* The spec of a sandbox; borrows all. */
struct sp_driver_spec clone_spec(struct world *w, struct clone *c, unsigned slot);
/* Path of its disk; free with g_free(). */
char *clone_disk(struct world *w, const struct clone *c);
struct sp_boot_talk *clone_talk(struct world *w, struct clone *c);
