/* Frequent conversions. */
#ifndef CALABASH_SIM_PTX_CONVERT_FAST_H
#define CALABASH_SIM_PTX_CONVERT_FAST_H

#include "sim/ptx/op.h"

/*
 * NULL: the conversion has no handler of its own. Registers must be as wide as the types; rounding is to
 * nearest.
 */
op_fn *convert_fast(enum type to, enum type from);

#endif
