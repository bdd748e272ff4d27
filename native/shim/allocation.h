/* One allocation that the ledger remembers, whatever the family. */
#ifndef CALABASH_SHIM_ALLOCATION_H
#define CALABASH_SHIM_ALLOCATION_H

#include "shim/base.h"

struct cb_allocation {
    int device;
    uint64_t bytes;
};
/* On the current device; false: there is no room on the card, and spill.h knows whether there is beyond it. */
bool cb_allocation_linear(struct cb_allocation *allocation, uint64_t bytes);
bool cb_allocation_begin(struct cb_allocation *allocation,
                         uint64_t bytes); /* on the current device; false: over the cap */
bool cb_allocation_resize(struct cb_allocation *allocation, uint64_t bytes);
void cb_allocation_end(struct cb_allocation *allocation, CUresult result, uint32_t kind, uint64_t key);
void cb_allocation_release(uint32_t kind, uint64_t key); /* after the driver has freed it */

#endif
