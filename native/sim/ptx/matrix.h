/* Matrix products. */
#ifndef CALABASH_SIM_PTX_MATRIX_H
#define CALABASH_SIM_PTX_MATRIX_H

#include "sim/ptx/op.h"

op_fn op_mma, op_load_matrix;

#endif
