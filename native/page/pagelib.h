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

/* Stores with release order, loads with acquire order. */
void cb_page_store32(uint32_t *word, uint32_t value);
void cb_page_store64(uint64_t *word, uint64_t value);
uint32_t cb_page_load32(const uint32_t *word);
uint64_t cb_page_load64(const uint64_t *word);
uint32_t cb_page_add32(uint32_t *word, uint32_t value); /* the value after */

/* Wakes everybody who sleeps on the word, in whatever process; how many, or -errno. */
int cb_page_wake(uint32_t *word);

/* Sleeps until the word is woken, differs from `seen`, or `timeout_ns` have passed: 1 woken or differs, 0
 * timeout. */
int cb_page_wait(uint32_t *word, uint32_t seen, uint64_t timeout_ns);

#endif
