/* Raw sockets for the tests of the HTTP server: what a well-behaved client library does not send.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* A blocking TCP connection to "127.0.0.1:port". */
int raw_connect(const char *address);
void raw_send(int fd, const char *bytes, gsize len);
#define raw_send_text(fd, text) raw_send((fd), (text), strlen(text))
/* Reads until the text contains needle (NULL: until the end) or the time is over; adds to what is
 * in into. Returns whether needle (or the end) came. */
bool raw_read_until(int fd, GString *into, const char *needle, int64_t timeout_ms);
/* One connection: sends, reads to the end (the test fails when that takes more than 5 s). */
char *raw_exchange(const char *address, const char *bytes, gsize len);
int raw_status(const char *answer);
