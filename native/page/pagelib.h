/*
 * Interface of libcalabash-page.so: the operations on control pages for which the agent, written in Python,
 * needs atomics or a system call.
 *
 * All of them work on pages that a tenant can write, so every index is checked and every loop is bounded.
 */
#ifndef CALABASH_PAGELIB_H
#define CALABASH_PAGELIB_H

#include "page/page.h"

/*
 * Remove what a dead process held from the container's counters and free its slot, provided that the slot still
 * belongs to that process. Call it only after the process has ended and the driver has freed its memory. Return
 * 1 if the slot was freed now; 0 if it is free or belongs to another process by now; -1 if the tenant keeps
 * changing the page: call again later.
 */
int cb_page_reap(struct cb_usage *usage, uint32_t slot, uint32_t generation, int32_t pid,
                 uint64_t start_time);

/* Set host_pid of a slot that is still of this generation; return 1 if it was set, else 0. */
int cb_page_set_host_pid(struct cb_usage *usage, uint32_t slot, uint32_t generation, int32_t host_pid);

/* Store with release order. */
void cb_page_store64(uint64_t *word, uint64_t value);

/*
 * Publish how to run from now on: gate, number of other containers and, if given, a plan. A plan that starts
 * later leaves the current one in force until then. Readers see either all of it or an odd or changed word, and
 * then read again. One writer only.
 */
void cb_page_set_gate(struct cb_limits_device *device, uint32_t gate, uint32_t neighbours,
                      const struct cb_plan *plan);

/* Raise seen_ns, then unreported_ns: a reader that sees the second sees the first. One writer only. */
void cb_page_add_seen(struct cb_limits_device *device, uint64_t seen_ns, uint64_t unreported_ns);

/* Read unreported_ns, then seen_ns. */
void cb_page_charges(const struct cb_limits_device *device, uint64_t found[2]);

/* Wake all threads, of any process, that sleep on the word; return their number, or -errno. */
int cb_page_wake(uint32_t *word);

#endif
