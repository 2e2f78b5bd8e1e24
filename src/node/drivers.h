/* The isolation tiers of this node: their drivers and whether they work. */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>

#include "driver/driver.h"

struct sp_drivers;

struct sp_drivers *sp_drivers_new(void);
/* Takes the driver over. Before sp_drivers_probe(). */
void sp_drivers_add(struct sp_drivers *drivers, struct sp_driver *driver);
/* Names a tier whose driver could not be made. */
void sp_drivers_add_broken(struct sp_drivers *drivers, const char *tier, const char *reason);
/* Starts a trial of each tier in a thread of its own; done is called when each has ended. */
void sp_drivers_probe(struct sp_drivers *drivers, void (*done)(void *user), void *user);
/* Waits until all trials have ended, at most timeout_ms. */
bool sp_drivers_wait_probed(struct sp_drivers *drivers, int64_t timeout_ms);
/* Waits for the probes and frees the drivers. */
void sp_drivers_free(struct sp_drivers *drivers);

/* The driver of a tier, whether it works or not; NULL when there is none. */
struct sp_driver *sp_drivers_find(struct sp_drivers *drivers, const char *tier);
/* The driver of a tier that works here; waits for the tier's trial (at most 25 s). NULL with the
 * tier's own reason. */
struct sp_driver *sp_drivers_get(struct sp_drivers *drivers, const char *tier, GError **error);
/* [{tier, available, detail, save_memory, save_memory_detail}] as far as is known. */
json_t *sp_drivers_to_json(struct sp_drivers *drivers);
