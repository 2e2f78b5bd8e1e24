/* Between sessions.c (the cache) and session_life.c (what happens to a session). */
#pragma once

#include "node/sessions.h"

struct sp_sessions {
    struct sp_node *node;
    GMutex lock;
    GCond taken;       /* a session's end_taken */
    GHashTable *by_id; /* id → struct sp_session *, a reference each */
};

/* The session of that id, made as pending if need be. The lock is held; borrowed. */
struct sp_session *sp_sessions_get_locked(struct sp_sessions *sessions, const char *id);
