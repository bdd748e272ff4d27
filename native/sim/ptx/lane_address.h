/* Translation of lanes' addresses to memory of this process. */
#ifndef CALABASH_SIM_PTX_LANE_ADDRESS_H
#define CALABASH_SIM_PTX_LANE_ADDRESS_H

#include "sim/ptx/lanes.h"

/* The address is the immediate alone; and it is within the frame's locals. */
enum { ACCESS_NO_BASE = 1, ACCESS_FRAME = 2 };

/* The addresses of an operation: base register and immediate. */
void lane_addresses(const struct warp *w, const struct op *o, u64 *address);
/*
 * One pointer for each lane of the mask, behind which `bytes` may be accessed; the other lanes get that of the
 * first. Return false after a fault was reported.
 */
bool lane_places(struct warp *w, const struct op *o, u32 mask, enum space space, const u64 *address,
                 u32 bytes, u8 **place);

#endif
