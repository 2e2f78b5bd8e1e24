/*
 * The server's controller: one thread that does what is due (overdue operations, expired sandboxes,
 * purging; see sp_store_sweep()) and notes when a node's lease runs out.
 *
 * It sleeps until the next thing is due or the store says that something changed: no polling. Of
 * several servers on one database only the one that holds a lease acts; then it looks every second,
 * as news of the others can be lost.
 */
#pragma once

#include "store/store.h"

struct sp_controller;

struct sp_controller *sp_controller_start(struct sp_store *store);
/* Waits for the thread; wake the store's waiters (sp_store_wake_all()) first. */
void sp_controller_stop(struct sp_controller *controller);
