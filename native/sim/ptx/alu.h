/* Operations that compute a register from registers, lane by lane. */
#ifndef CALABASH_SIM_PTX_ALU_H
#define CALABASH_SIM_PTX_ALU_H

#include "sim/ptx/op.h"

struct alu {
    const char *name; /* with the modifiers that select another operation: "mul.hi" */
    /* result, then sources: t the instruction's type, w twice as wide, u a 32-bit integer, p predicate */
    const char *shape;
    op_fn *const *run;   /* by type */
    op_fn *const *flush; /* the same with .ftz; NULL: no difference */
};

/* Each ends with an entry without a name. */
extern const struct alu alu_integer[], alu_bits[], alu_logic[], alu_float[], alu_half[], alu_carry[],
    alu_video[];

#endif
