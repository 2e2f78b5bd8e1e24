/* How sessions end and leave the table. Private to session.c and session_end.c. */
#pragma once

#include "session.h"

/* Records the exit when the leader has ended and its output is complete. */
void session_check_end(struct agent *a, struct session *s);
/* From live to ended: lets go of everything but the ring. */
void session_retire(struct agent *a, struct session *s);
void session_free(struct agent *a, struct session *s);
/* Whether processes of the session may have outlived its leader. */
bool session_has_rest(struct agent *a, struct session *s);
