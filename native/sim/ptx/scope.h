/* Names and their scopes. */
#ifndef CALABASH_SIM_PTX_SCOPE_H
#define CALABASH_SIM_PTX_SCOPE_H

#include "sim/ptx/compiler.h"

struct symbol *scope_find(struct compiler *c, const char *name, size_t length);
struct symbol *scope_add(struct compiler *c, const char *name, size_t length, enum symbol_kind kind);
bool scope_open(struct compiler *c);
void scope_close(struct compiler *c);
/* Drop the names that other linked modules cannot see. */
void scope_end_unit(struct compiler *c);
void scope_free(struct compiler *c);
bool scope_refer(struct compiler *c, const char *name, size_t length, uint32_t op, bool list);

#endif
