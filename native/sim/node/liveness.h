/* Liveness of the processes of a node, by the locks that the kernel releases when a process ends. */
#ifndef CALABASH_SIM_NODE_LIVENESS_H
#define CALABASH_SIM_NODE_LIVENESS_H

#include "sim/node/state.h"

/* Offsets of the locked bytes, far behind the end of the file, one region for each kind of lock. */
#define LIVE_BASE ((off_t)1 << 40)
#define PID_BASE  ((off_t)1 << 41)

/* Return true if the process of a slot is alive. Call sim_liveness_readable() before. */
bool sim_slot_is_held(struct sim *s, uint32_t slot);

/* Return true if the locks of others can be tested, with a new descriptor if need be. */
bool sim_liveness_readable(struct sim *s);

/* Amounts that dead processes still count for on `device`, until a sweep. Requires the device's lock. */
struct sim_remains {
    uint64_t alloc_bytes, context_bytes;
};
struct sim_remains sim_remains_on(struct sim *s, uint32_t device);

#endif
