/* Handlers of control flow: branches, calls, ends, barriers. */
#ifndef CALABASH_SIM_PTX_CONTROL_H
#define CALABASH_SIM_PTX_CONTROL_H

#include "sim/ptx/op.h"

op_fn op_branch, op_branch_table, op_call, op_call_through, op_return, op_exit, op_trap, op_yield, op_barrier,
    op_break;
enum {
    BARRIER_ARRIVE = 1,
    BARRIER_POPC = 2,
    BARRIER_AND = 4,
    BARRIER_OR = 8,
    BARRIER_ALL_ALIKE = 16,
    BARRIER_NOT = 32
};

#endif
