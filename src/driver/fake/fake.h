/*
 * A tier for tests of the worker: the sandbox is the real agent in new pid, mount and UTS
 * namespaces of this machine (by unshare(1)), with the machine's own files. No isolation worth the
 * name: never offered outside of tests. Calls itself "container". Needs root.
 */
#pragma once

#include "driver/driver.h"

struct sp_driver *sp_driver_fake_new(const struct sp_driver_env *env, GError **error);
