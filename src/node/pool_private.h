/* What the files of the pool share; see pool.h. */
#pragma once

#include "base/ids.h"
#include "node/pool.h"
#include "node/pool_target.h"

#define SP_POOL_MAKERS 2 /* members made at once */

/* A pool. Guarded by the pool's lock, but for spec and text, which do not change. */
struct sp_pool_key {
    gint refs;
    char *text;                   /* all of the key as one string */
    struct sp_sandbox_spec *spec; /* of its members */
    struct sp_pool_demand demand;
    struct sp_pool_marks marks;
    GQueue ready;     /* struct sp_pool_member *, oldest first */
    unsigned filling; /* being made */
    unsigned members; /* all that exist: ready, being made, claimed or destroyed just now */
    bool usable;      /* a create of this key has come to run */
    bool forgotten;   /* its template goes: no new members */
    bool below;       /* it was below low, and has not been up to high since */
    unsigned failures;
    int64_t retry_ms; /* monotonic: not before */
    int64_t vmm_retry_ms;
    int64_t hits, misses;
};

/* One member. It belongs to whoever has taken it out of the list, without a lock. */
struct sp_pool_member {
    struct sp_pool *pool;
    struct sp_pool_key *key; /* a reference */
    char name[SP_ID_MAX];    /* "pool_…", of directory and resources */
    char id[SP_ID_MAX];      /* throw-away "sbx_…" */
    char *run_dir;
    int slot; /* -1: none */
    struct sp_instance *instance;
    struct sp_link *link;
    bool paused;
    gint gone; /* atomic: its process has ended */
    uint64_t stamp;
};

/* A VMM that the driver has started ahead. It is in use by a create as soon as the driver takes it;
 * then its directory is gone, and soon its slot is claimed. */
struct sp_pool_vmm {
    struct sp_pool_key *key; /* a reference */
    char name[SP_ID_MAX];
    char *run_dir;
    int slot;
    uint64_t stamp;
    bool failed;  /* the driver does not know of it (any more): it is only to be destroyed */
    bool missing; /* its directory has been seen to be gone: a create has it */
};

struct sp_pool {
    struct sp_node *node;
    char *root; /* <state>/run/pool */
    unsigned min, max;
    int64_t memory_bytes; /* most that all members may take together; 0: a share of the host's */
    gint creating;        /* atomic: creates under way */
    gint making;          /* atomic: create() of drivers under way, for whatever purpose */

    GMutex lock;
    GCond changed;      /* broadcast: something below has */
    GHashTable *keys;   /* text → struct sp_pool_key *, a reference each */
    GHashTable *names;  /* of all members that exist, owned */
    unsigned leftovers; /* members of an earlier worker that exist */
    GPtrArray *vmms;    /* struct sp_pool_vmm *, owned */
    bool starting;      /* one more of these is being started */
    GQueue doomed;      /* struct sp_pool_member *: to be destroyed by the thread */
    unsigned filling;   /* of all keys */
    bool stopping;

    GThread *thread; /* NULL: not started */
    GThreadPool *makers;
    char *qemu_path; /* NULL: not installed */
    /* What the thread has found last, guarded by the lock. */
    uint64_t stamp; /* of what members are made with */
    int64_t available_bytes, free_disk_bytes;
};

/* What a maker is to do: one more member, or one more VMM started ahead. */
struct sp_pool_job {
    struct sp_pool_key *key; /* a reference */
    bool vmm;
};

struct sp_pool_key *sp_pool_key_ref(struct sp_pool_key *key);
void sp_pool_key_unref(struct sp_pool_key *key);
/* The key of a spec; NULL when there is none and it is not to be made. The lock is held;
 * borrowed. */
struct sp_pool_key *sp_pool_key_locked(struct sp_pool *pool, const struct sp_sandbox_spec *spec,
                                       bool make);

/* --- pool_member.c: all block, without the lock */
struct sp_pool_member *sp_pool_member_new(struct sp_pool *pool, struct sp_pool_key *key);
/* Makes it: runs, has run a command, and stands still where its tier can. A failure leaves what
 * there is for destroy(). Waits now and then while creates are under way. */
bool sp_pool_member_make(struct sp_pool_member *member, GError **error);
/* Lets it go on under a new identity; the claim has moved its run directory. */
bool sp_pool_member_wake(struct sp_pool_member *member, GError **error);
/* Forgets what is in memory of it; its directory is not touched. */
void sp_pool_member_release(struct sp_pool_member *member);
/* Removes all of it. False (logged): something is left, which can be tried again. */
bool sp_pool_member_destroy(struct sp_pool_member *member);
void sp_pool_member_free(struct sp_pool_member *member);
/* The left-overs of an earlier worker as members to be destroyed; their slots are claimed. */
void sp_pool_members_find(struct sp_pool *pool, GQueue *ret);

int sp_pool_take_slot(struct sp_pool *pool); /* -1: none for pools */
void sp_pool_release_slot(struct sp_pool *pool, int slot);

/* --- pool_vmm.c */
/* Starts one ahead for this key. Blocks. */
void sp_pool_vmm_start(struct sp_pool *pool, struct sp_pool_key *key);
/* Which key needs one more, a reference; NULL: none. The lock is held. */
struct sp_pool_key *sp_pool_vmm_needed(struct sp_pool *pool);
/* Removes those that nobody will take, releasing the lock meanwhile. */
void sp_pool_vmms_weed(struct sp_pool *pool);
void sp_pool_vmm_free(struct sp_pool_vmm *vmm);

/* --- pool_fill.c: the thread, and the makers */
void *sp_pool_thread(void *pool);
void sp_pool_fill(void *job, void *pool);
/* Waits while creates are under way, for some seconds at most; false when the pool stops. */
bool sp_pool_wait_turn(struct sp_pool *pool);
/* Gives a member to the thread to be destroyed. */
void sp_pool_doom(struct sp_pool *pool, struct sp_pool_member *member);
/* Changes when the files that members are made of do. */
uint64_t sp_pool_stamp(const struct sp_pool *pool);
/* A new member is counted; one is no more (removed, or a sandbox now), and freed. The lock is
 * held. */
void sp_pool_count_locked(struct sp_pool *pool, struct sp_pool_member *member);
void sp_pool_uncount_locked(struct sp_pool *pool, struct sp_pool_member *member);
