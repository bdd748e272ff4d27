/* Handlers of loads, stores and address conversions. */
#ifndef CALABASH_SIM_PTX_ACCESS_H
#define CALABASH_SIM_PTX_ACCESS_H

#include "sim/ptx/op.h"

op_fn op_load, op_store, op_copy_async, op_frame_address, op_is_space, op_window_add, op_window_sub;
/* mov of a vector: elements of a register from and to registers. */
op_fn op_pack, op_unpack;

#endif
