/* The container driver on a state directory of its own, for the tests of it. They need root. */
#pragma once

#include <glib.h>

#include "base/ids.h"
#include "disk/volume.h"
#include "driver/container/container.h"

struct fixture {
    char *state, *template_dir, *digest, *root_name, *host_mounts;
    struct sp_volume *volume;
    struct sp_driver_env env;
    struct sp_driver *driver;
    const struct sp_driver_ops *ops;
};

/* One running sandbox of a test. */
struct box {
    char id[SP_ID_MAX];
    char *run_dir;
    struct sp_instance *instance;
};

/* For g_test_add(); data not NULL: the volume is a plain directory, layers are tmpfs mounts.
 * tear_down() checks that nothing is left. */
void set_up(struct fixture *f, gconstpointer data);
void tear_down(struct fixture *f, gconstpointer data);
/* A new run directory unless box has one. */
struct sp_driver_spec spec_of(struct fixture *f, struct box *box, unsigned slot);
void create(struct fixture *f, struct box *box, unsigned slot);
void clear(struct box *box);
/* Sends a command to the stand-in agent and returns its whole answer. */
char *ask(struct fixture *f, struct box *box, const char *command);
void expect(struct fixture *f, struct box *box, const char *command, const char *answer);
/* destroy() twice, and then nothing may be left. */
void destroy(struct fixture *f, struct box *box);
void run(const char *const *argv);
char *mounts(void);
