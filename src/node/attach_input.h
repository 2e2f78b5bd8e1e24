/* The other requests of an attachment: stdin, close-stdin, resize, signal. user is the struct
 * sp_node. */
#pragma once

#include "http/server.h"

bool sp_attach_input_authorize(struct sp_http_request *request, void *user, GError **error);
/* POST …/stdin: the body goes to the command as it arrives. */
bool sp_attach_stdin_body(struct sp_http_request *request, const char *bytes, size_t len,
                          GError **error);
void sp_attach_stdin(struct sp_http_request *request, void *user);
void sp_attach_close_stdin(struct sp_http_request *request, void *user);
void sp_attach_resize(struct sp_http_request *request, void *user);
void sp_attach_signal(struct sp_http_request *request, void *user);
