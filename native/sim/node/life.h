/* Who of the processes of a node lives, by the locks that their ends release. */
#ifndef CALABASH_SIM_LIFE_H
#define CALABASH_SIM_LIFE_H

#include "sim/node/state.h"

/* Locks live on bytes far behind the end of the file, one region for each kind. */
#define LIVE_BASE ((off_t)1 << 40)
#define PID_BASE  ((off_t)1 << 41)

/* Whether the process of a slot lives. Ask sim_can_look() before. */
bool sim_slot_is_held(struct sim *s, uint32_t slot);

/* Whether the locks of others can be looked at, with a new descriptor if need be. */
bool sim_can_look(struct sim *s);

/* What processes that have died still count for on `device`, until somebody sweeps. Call with the device's lock. */
struct sim_remains {
    uint64_t alloc_bytes, context_bytes;
};
struct sim_remains sim_remains_on(struct sim *s, uint32_t device);

#endif
