/*
 * Executable form of a program: operations on whole warps.
 *
 * A register is an array of 32 elements of its own width in the frame of its function, a predicate one word
 * with a bit for each lane. Constants are arrays too, in a block of their own, so that every handler is one
 * loop over lanes.
 */
#ifndef CALABASH_SIM_PTX_OP_H
#define CALABASH_SIM_PTX_OP_H

#include "sim/ptx/type.h"

#define LANES    32
#define FULL     UINT32_MAX
#define CONSTANT 0x80000000u /* of an operand: it is in the block of constants */

struct warp;
struct op;

/* Execute `o` for the lanes of `mask`. Return the next operation, or NULL if the lanes wait, diverge or end. */
typedef const struct op *op_fn(struct warp *w, const struct op *o, uint32_t mask);

#define GUARD_NOT 0x80000000u

struct op {
    op_fn *run;
    uint32_t guard; /* 0: always; else 1 + place of a predicate, with GUARD_NOT if it must be false */
    uint32_t d, a, b, c, e;
    uint32_t flag;             /* private to the handler */
    uint32_t second_place;     /* of another result */
    uint32_t list, list_count; /* of the function's list of places: vectors, arguments */
    uint32_t line;
    uint8_t type, from, width, shape; /* types, bytes of an element, of a register */
    int64_t immediate, second;
    /* of a branch: its target, and the reconvergence point of lanes that diverge here */
    const struct op *target, *join;
    const void *extra;
};

enum space {
    SPACE_GENERIC,
    SPACE_REGISTER,
    SPACE_GLOBAL,
    SPACE_CONST,
    SPACE_SHARED,
    SPACE_LOCAL,
    SPACE_PARAM
};

/* Generic addresses outside the card's memory. */
#define WINDOW_SHARED   (1ull << 56)
#define WINDOW_LOCAL    (2ull << 56)
#define WINDOW_PARAM    (3ull << 56)
#define WINDOW_FUNCTION (4ull << 56)
#define WINDOW(address) ((address) >> 56)
#define WINDOW_MASK     ((1ull << 56) - 1)

#endif
