/* Lanes of a warp that exchange values. */
#ifndef CALABASH_SIM_PTX_VOTES_H
#define CALABASH_SIM_PTX_VOTES_H

#include "sim/ptx/op.h"

enum { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BUTTERFLY, SHUFFLE_INDEX };
enum { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };
enum { REDUCE_ADD, REDUCE_MIN, REDUCE_MAX, REDUCE_AND, REDUCE_OR, REDUCE_XOR };
op_fn op_shuffle, op_vote, op_match, op_active, op_reduce, op_warp_sync, op_elect;

#endif
