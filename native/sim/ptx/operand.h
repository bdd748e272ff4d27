/* Operands: reading them, and the places that handlers access. */
#ifndef CALABASH_SIM_PTX_OPERAND_H
#define CALABASH_SIM_PTX_OPERAND_H

#include "sim/ptx/compiler.h"

bool operand_read(struct compiler *c, struct instruction *n, struct operand *o, bool nested);
/* Place of a source of this type; false: it is not suitable. */
bool operand_source(struct compiler *c, const struct operand *o, enum type t, uint32_t *place);
bool operand_target(struct compiler *c, const struct operand *o, enum type t, uint32_t *place);
/* Of any register width; return its bytes. */
bool operand_any_source(struct compiler *c, const struct operand *o, uint32_t least, uint32_t *place,
                        uint32_t *bytes);
bool operand_any_target(struct compiler *c, const struct operand *o, uint32_t least, uint32_t *place,
                        uint32_t *bytes);
/* Set the address of an access: place, width, immediate, flag. */
bool operand_address(struct compiler *c, const struct operand *o, enum space *space, struct op *to);

bool span_is(struct span_text s, const char *text);

#endif
