/* Handlers of operations that exchange values between the lanes of a warp. */
#ifndef CALABASH_SIM_PTX_WARP_EXCHANGE_H
#define CALABASH_SIM_PTX_WARP_EXCHANGE_H

#include "sim/ptx/op.h"

enum { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BUTTERFLY, SHUFFLE_INDEX };
enum { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };
enum { REDUCE_ADD, REDUCE_MIN, REDUCE_MAX, REDUCE_AND, REDUCE_OR, REDUCE_XOR };
op_fn op_shuffle, op_vote, op_match, op_active, op_reduce, op_warp_sync, op_elect;

#endif
