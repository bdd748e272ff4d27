/*
 * libcalabash-page.so: what the agent, written in Python, needs atomics or a system call for.
 *
 * All of it works on pages that a tenant can write, so every index is checked and every loop bounded.
 */
#ifndef CALABASH_PAGELIB_H
#define CALABASH_PAGELIB_H

#include "page/page.h"

/*
 * Takes what a dead process held off the container's counters and frees its slot, provided the slot still
 * belongs to that process. Call it when the process is gone and the driver has freed its memory, never
 * earlier. 1: freed now; 0: the slot is free or another process' by now; -1: the tenant keeps changing the
 * page, ask again later.
 */
int cb_page_reap(struct cb_usage *usage, uint32_t slot, uint32_t generation, int32_t pid,
                 uint64_t start_time);

/*
 * Sets the counters of every device to the sum of what the process slots hold, for the repair of a damaged
 * page. Exact also while processes allocate. Returns how many devices were wrong, -1 when a device kept
 * changing.
 */
int cb_page_recount(struct cb_usage *usage);

/* Sets host_pid of a slot that is still of this generation; 1 done, 0 not. */
int cb_page_set_host_pid(struct cb_usage *usage, uint32_t slot, uint32_t generation, int32_t host_pid);

/* Stores with release order. */
void cb_page_store64(uint64_t *word, uint64_t value);

/*
 * Publishes how to run from now on: gate, neighbours and, when there is one, a plan. A plan that starts later leaves the
 * one in force valid until then. Readers see all of it or an odd or changed word, and then look again; one writer.
 */
void cb_page_set_gate(struct cb_limits_device *device, uint32_t gate, uint32_t neighbours,
                      const struct cb_plan *plan);

/* Raises seen_ns, then unreported_ns: who sees the second sees the first. One writer. */
void cb_page_add_seen(struct cb_limits_device *device, uint64_t seen_ns, uint64_t unreported_ns);

/* Reads unreported_ns, then seen_ns. */
void cb_page_charges(const struct cb_limits_device *device, uint64_t found[2]);

/* Wakes everybody who sleeps on the word, in whatever process; how many, or -errno. */
int cb_page_wake(uint32_t *word);

#endif
