/* Compilation of function bodies. */
#ifndef CALABASH_SIM_PTX_BODY_H
#define CALABASH_SIM_PTX_BODY_H

#include "sim/ptx/compiler.h"

/* Compile from behind the opening brace to behind the closing one. */
void body_read(struct compiler *c);
/* After an error: skip to behind the next `;`, or before a closing brace. */
void skip_statement(struct compiler *c);

#endif
