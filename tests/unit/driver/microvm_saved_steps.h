/* What the tests about saved VMs do again and again; failures end the test. */
#pragma once

#include "microvm_world.h"

#define SNAPSHOT "snp_01hzy0000000000000000000aa"

/* What the counter in the guest says of itself. */
struct counter {
    int pid;
    unsigned long count;
};

/* Marks the test as skipped where VMs cannot run. */
bool saved_skip(void);
/* Runs /bin/tool in the guest; it must succeed. Its output, owned. */
char *saved_ask(struct sp_boot_talk *talk, const char *word, const char *a, const char *b);
/* Asks the counter; its blob must be whole. */
struct counter saved_look(struct sp_boot_talk *talk);
/* A connection whose agent has got an identity. */
struct sp_boot_talk *saved_identify(struct world *w, struct clone *c);
/* As a session that runs on. */
void saved_start_counter(struct sp_boot_talk *talk);
/* A VM with a counter, a blob of 8 MiB in its memory and files that nobody has synced (their hash;
 * may be NULL). */
struct sp_boot_talk *saved_origin(struct world *w, struct clone *c, unsigned slot,
                                  char **ret_files);
/* HOLD, pause and the whole of a saving; the VM is left paused. */
bool saved_save(struct world *w, struct clone *c, struct sp_boot_talk *talk, const char *name,
                bool memory, bool durable, GError **error);
/* Resume and RELEASE. */
void saved_go_on(struct world *w, struct clone *c, struct sp_boot_talk *talk);
/* The same as saved_save(), which must succeed. */
void saved_must(struct world *w, struct clone *c, struct sp_boot_talk *talk, const char *name,
                bool memory, bool durable);
/* Another VM from a saved form. */
void saved_make(struct world *w, struct clone *c, const char *name, enum sp_saved_use use,
                unsigned slot);
/* Number of entries in a folder of the volume. */
unsigned saved_entries(struct world *w, const char *folder);
/* Closes the world; nothing may be left on the volume. */
void saved_end(struct world *w);
/* Forgets and removes a form. */
void saved_remove(struct world *w, const char *name);
/* Another handle of the same VM, which is paused or not. */
void saved_adopt(struct world *w, struct clone *c, bool wanted);
/* Starts a VMM ahead, in a run directory of its own. */
void saved_prestart(struct world *w, const char *name, unsigned slot, char **ret_run_dir);
