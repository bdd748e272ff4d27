/* Comparisons, and combinations of their results. */
#ifndef CALABASH_SIM_PTX_COMPARE_H
#define CALABASH_SIM_PTX_COMPARE_H

#include "sim/ptx/op.h"

/* `extra` is the comparison, c a predicate to combine with, e a second result. */
typedef uint32_t compare_fn(const void *a, const void *b);
enum {
    COMBINE_NONE,
    COMBINE_AND,
    COMBINE_OR,
    COMBINE_XOR,
    COMBINE_MASK = 3,
    COMBINE_NOT = 4,
    COMBINE_SECOND = 8
};
/* Comparison by the name of its relation ("eq", "ltu"); NULL if the type has none. */
compare_fn *compare_named(const char *name, size_t length, enum type t, bool flush);
op_fn op_setp, op_set_float, op_set_integer;
/*
 * Comparisons of 16 bits, and of both halves of 32; `immediate` is the value of true in 16 bits. A pair's setp
 * has a result for each.
 */
op_fn op_set_half, op_set_pair, op_setp_pair;

#endif
