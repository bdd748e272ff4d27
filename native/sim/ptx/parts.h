/* The modifiers of an instruction. */
#ifndef CALABASH_SIM_PTX_PARTS_H
#define CALABASH_SIM_PTX_PARTS_H

#include "sim/ptx/compiler.h"

/* Whether the instruction has this modifier. */
bool has_part(const struct instruction *n, const char *part);
/* The last modifier that is a type; T_NONE when there is none. */
enum type last_type(const struct instruction *n);
/* The first modifier that names a space; SPACE_GENERIC when none does. */
enum space space_part(const struct instruction *n);

#endif
