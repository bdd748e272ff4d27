/*
 * The compute engine of a card, a discrete-event server in shared memory. No thread drives it: every process
 * that uses it advances it to the present, so its times are exact even if every process wakes late.
 *
 * Each context posts the modelled durations of its work to its own queue. A device serves the contexts that
 * have work in slices of SIM_SLICE_NS, or of the length that its time-slice class makes of that, preempting at
 * the end of a slice, as a real card time-slices its contexts; a context that is alone runs without pause. Work
 * starts at the exact end of its predecessor if it was posted before that, not when a thread woke up. Copies
 * run beside kernels on an engine of their own and are not contended.
 *
 * A card that MIG has partitioned serves each compute instance by itself, in a line of its own: instances have
 * separate multiprocessors and never wait for each other.
 */
#ifndef CALABASH_SIM_ENGINE_H
#define CALABASH_SIM_ENGINE_H

#include "sim/node/state.h"

/* Serve one line of `device` up to `now_ns`. Requires the device's lock. */
void engine_advance(struct sim *s, uint32_t device, uint32_t line, uint64_t now_ns);

/* Serve all of its lines, likewise. */
void engine_advance_all(struct sim *s, uint32_t device, uint64_t now_ns);

/*
 * Predict when entry `number` of a queue will be complete if nothing else is posted; at most a fixed time
 * ahead. Requires the device's lock and an updated device.
 */
uint64_t engine_predict(struct sim *s, uint32_t device, const struct sim_queue *q, uint64_t number);

/* Take a queue out of its device's list and free it. Requires the node's lock and no device's. */
void engine_drop(struct sim *s, uint32_t queue);

/* Drop every queue of the process slot on all devices, likewise. */
void engine_drop_process(struct sim *s, uint32_t slot);

#endif
