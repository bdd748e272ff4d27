/* Atomic operations. */
#ifndef CALABASH_SIM_PTX_ATOMIC_H
#define CALABASH_SIM_PTX_ATOMIC_H

#include "sim/ptx/op.h"

/* `flag` is the operation, a the address, b and c the operands. */
/* -1: no such operation. */
int atomic_named(const char *name, size_t length);
op_fn op_atomic;

#endif
