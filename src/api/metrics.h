/*
 * Counters of the server in Prometheus' text format (version 0.0.4): requests by route and status,
 * their durations, how long operations took from acceptance to their good end.
 *
 * Refusals before a handler (no such route, no key, body too large) are not among the requests.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "model/operation.h"

struct sp_metrics;

struct sp_metrics *sp_metrics_new(void);
void sp_metrics_free(struct sp_metrics *metrics);
/* route: index in sp_api_routes. */
void sp_metrics_request(struct sp_metrics *metrics, unsigned route, int status,
                        int64_t duration_us);
/* An operation has succeeded that long after it was accepted. */
void sp_metrics_operation(struct sp_metrics *metrics, enum sp_operation_kind kind,
                          int64_t duration_us);
/* Appends the text. */
void sp_metrics_write(struct sp_metrics *metrics, GString *out);
