/* Translation of instructions into operations. */
#ifndef CALABASH_SIM_PTX_EMIT_H
#define CALABASH_SIM_PTX_EMIT_H

#include "sim/ptx/compiler.h"

enum emitted { EMIT_OK, EMIT_MISMATCH, EMIT_UNKNOWN, EMIT_REFUSED, EMIT_LIMIT_EXCEEDED };

typedef enum emitted emit_fn(struct compiler *c, struct instruction *n);

struct emitter {
    const char *name;
    emit_fn *run;
};

/* Each ends with an entry without a name. */
extern const struct emitter emit_memory[], emit_control[], emit_convert[], emit_warp[], emit_matrix[];
/* All operations listed in alu.h. */
emit_fn emit_alu;

#endif
