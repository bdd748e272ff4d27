/* Look-up of an instruction's modifiers. */
#ifndef CALABASH_SIM_PTX_MODIFIERS_H
#define CALABASH_SIM_PTX_MODIFIERS_H

#include "sim/ptx/compiler.h"

/* Return true if the instruction has this modifier. */
bool has_modifier(const struct instruction *n, const char *part);
/* The last modifier that is a type; T_NONE: none. */
enum type last_type(const struct instruction *n);
/* The first modifier that names a space; SPACE_GENERIC: none. */
enum space space_modifier(const struct instruction *n);

#endif
