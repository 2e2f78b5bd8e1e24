/* A driver for tests of the pools: its agents are threads that can do what a create needs. */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/driver.h"

struct toy_driver {
    struct sp_driver base;
    GMutex lock;
    GHashTable *instances; /* run directory → struct toy * of those that exist */
    unsigned creates, destroys;
    bool refuse_create, refuse_claim;
    int64_t create_us;
};

struct toy {
    struct sp_instance base;
    gint refs; /* its handle's, and one of each agent's thread */
    char *run_dir;
    int end_fd; /* eventfd: readable when it has "ended" */
    gint mute;  /* atomic */
};

/* Freed by its driver_free(). */
struct toy_driver *toy_driver_new(void);
/* Its instance_free(). */
void toy_free(struct sp_instance *instance);
