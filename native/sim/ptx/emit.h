/* From instructions to operations. */
#ifndef CALABASH_SIM_PTX_EMIT_H
#define CALABASH_SIM_PTX_EMIT_H

#include "sim/ptx/compiler.h"

enum emitted { EMIT_OK, EMIT_MISMATCH, EMIT_UNKNOWN, EMIT_REFUSED, EMIT_BROKEN };

typedef enum emitted emit_fn(struct compiler *c, struct instruction *n);

struct emitter {
    const char *name;
    emit_fn *run;
};

/* Each ends with an entry without a name. */
extern const struct emitter emit_memory[], emit_control[], emit_convert[], emit_warp[], emit_matrix[];
/* Everything that alu.h lists. */
emit_fn emit_alu;

#endif
