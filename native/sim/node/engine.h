/*
 * The card as a discrete-event server in shared memory. Nobody drives it: whoever looks advances it to the
 * present, so its books are exact even when every process wakes late.
 *
 * Each context posts the modelled durations of its work to a queue of its own. A device serves the contexts
 * that have work in turns of SIM_SLICE_NS, or of what its class of turns makes of that, preempting at the end of a
 * turn, as a real card time-slices its contexts; a context that is alone runs without pause. Work starts at the
 * exact end of its predecessor when it was posted before that, not when some thread woke up. Copies run beside
 * kernels on an engine of their own and are not contended.
 *
 * A card that MIG has divided serves each compute instance by itself, in a line of its own: instances have
 * multiprocessors of their own and never wait for each other.
 */
#ifndef CALABASH_SIM_ENGINE_H
#define CALABASH_SIM_ENGINE_H

#include "sim/node/state.h"

/* Serve one line of `device` up to `now_ns`. The caller holds the device's lock. */
void engine_advance(struct sim *s, uint32_t device, uint32_t line, uint64_t now_ns);

/* All of its lines, likewise. */
void engine_advance_all(struct sim *s, uint32_t device, uint64_t now_ns);

/* When entry `number` of a queue will be complete if nothing else is posted; never later than a bound ahead.
 * The caller holds the device's lock and has advanced it. */
uint64_t engine_predict(struct sim *s, uint32_t device, const struct sim_queue *q, uint64_t number);

/* Take a queue out of its device's list and free it. The caller holds the node's lock and no device's. */
void engine_drop(struct sim *s, uint32_t queue);

/* Drop every queue of the process slot on all devices, likewise. */
void engine_drop_process(struct sim *s, uint32_t slot);

#endif
