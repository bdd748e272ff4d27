/* Frequent conversions. */
#ifndef CALABASH_SIM_PTX_CONVERT_FAST_H
#define CALABASH_SIM_PTX_CONVERT_FAST_H

#include "sim/ptx/op.h"

/* NULL: there is none of its own. Registers must be as wide as the types; rounding is to nearest. */
op_fn *convert_fast(enum type to, enum type from);

#endif
