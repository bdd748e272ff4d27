/* One allocation recorded in the ledger, of any family. */
#ifndef CALABASH_SHIM_ALLOCATION_H
#define CALABASH_SHIM_ALLOCATION_H

#include "shim/base.h"

struct cb_allocation {
    int device;
    uint64_t bytes;
};
/*
 * Reserve on the current device. Return false if there is no room on the card; spill.h then decides about
 * managed memory.
 */
bool cb_allocation_linear(struct cb_allocation *allocation, uint64_t bytes);
bool cb_allocation_begin(struct cb_allocation *allocation,
                         uint64_t bytes); /* on the current device; false: beyond the cap */
bool cb_allocation_resize(struct cb_allocation *allocation, uint64_t bytes);
void cb_allocation_end(struct cb_allocation *allocation, CUresult result, uint32_t kind, uint64_t key);

#endif
