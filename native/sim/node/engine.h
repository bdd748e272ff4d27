/*
 * The card as a discrete-event server in shared memory. Nobody drives it: whoever looks advances it to the
 * present, so its books are exact even when every process wakes late.
 *
 * Each context posts the modelled durations of its work to a queue of its own. A device serves the contexts
 * that have work in turns of SIM_SLICE_NS, preempting at the end of a turn, as a real card time-slices its
 * contexts; a context that is alone runs without pause. Work starts at the exact end of its predecessor when
 * it was posted before that, not when some thread woke up. Copies run beside kernels on an engine of their
 * own and are not contended.
 */
#ifndef CALABASH_SIM_ENGINE_H
#define CALABASH_SIM_ENGINE_H

#include "sim/node/state.h"

/* Serve `device` up to `now_ns`. The caller holds the device's lock. */
void engine_advance(struct sim *s, uint32_t device, uint64_t now_ns);

/* Claim a queue on `device` for this process; -1 when all are in use. */
int engine_open(struct sim *s, uint32_t device, uint32_t priority);
void engine_close(struct sim *s, int queue);

/* Drop every queue of the process slot on all devices. The caller holds the node's lock and no device's. */
void engine_drop_process(struct sim *s, uint32_t slot);

/* Entries that can still be posted without waiting. */
uint32_t engine_room(struct sim *s, int queue);

/* Post work; the caller is the only poster of this queue and has seen room. Returns its number. */
uint64_t engine_post(struct sim *s, int queue, enum sim_work kind, uint64_t duration_ns);

/* Whether entry `number` is complete by now; its end goes to *end_ns (may be NULL) while it is still in the
 * ring. */
bool engine_done(struct sim *s, int queue, uint64_t number, uint64_t *end_ns);

/* Sleep until entry `number` is complete. */
void engine_wait(struct sim *s, int queue, uint64_t number);

/* Sleep until CLOCK_MONOTONIC `at_ns`, precisely for long waits and by spinning for the last few
 * microseconds. */
void engine_sleep_until(uint64_t at_ns);

#endif
