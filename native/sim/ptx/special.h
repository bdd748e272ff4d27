/* Special registers, which the hardware sets. */
#ifndef CALABASH_SIM_PTX_SPECIAL_H
#define CALABASH_SIM_PTX_SPECIAL_H

#include "sim/ptx/op.h"

/* `flag` is the register. */
/* 0: no such register. */
uint32_t special_named(const char *name, size_t length);
uint32_t special_bytes(uint32_t which);
op_fn op_special, op_nothing;

#endif
