/* Conversions between types. */
#ifndef CALABASH_SIM_PTX_CONVERT_H
#define CALABASH_SIM_PTX_CONVERT_H

#include "sim/ptx/op.h"

/* Types from and type, registers of shape and width bytes. */
enum { CONVERT_SATURATE = 1, CONVERT_FLUSH = 2, CONVERT_WHOLE = 4, CONVERT_RELU = 8, CONVERT_PAIR = 16 };
/* `immediate` is the letter of the rounding mode, as of narrow_from_double. */
op_fn op_convert, op_round, op_narrow_pair;

#endif
