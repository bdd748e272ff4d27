/* Declarations of registers and variables. */
#ifndef CALABASH_SIM_PTX_DECLARE_H
#define CALABASH_SIM_PTX_DECLARE_H

#include "sim/ptx/compiler.h"

struct declared {
    struct span_text name;
    enum space space;
    enum type type;
    uint32_t alignment, row, vector;
    uint64_t bytes;
    bool unsized, external, visible, opaque;
};
/* Read from behind the space's directive up to `,`, `;`, `)`, `=` or `}`. */
bool declare_one(struct compiler *c, struct declared *d);
/*
 * Read variables of any space but registers, with their initialisers, from behind the directive of the space.
 */
bool declare_variables(struct compiler *c, enum space space, bool external, bool visible);
bool declare_registers(struct compiler *c);

#endif
