/*
 * Feeds our standard input to a session: a thread that uploads what is there and closes the
 * command's input at the end of file.
 */
#pragma once

#include "cli/attachment.h"
#include "cli/interrupt.h"
#include "os/cleanup.h"

struct sp_stdin_pump;

/* Starts reading fd (borrowed). */
struct sp_stdin_pump *sp_stdin_pump_start(int fd, struct sp_attachment *attachment);
/* Ends the thread, whether it is done or not, and frees. False when input was lost: an upload broke
 * off (that has been said on stderr). NULL is fine. */
bool sp_stdin_pump_stop(struct sp_stdin_pump *pump);
