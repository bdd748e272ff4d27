/* Functions that the driver provides to programs. */
#ifndef CALABASH_SIM_PTX_BUILTIN_H
#define CALABASH_SIM_PTX_BUILTIN_H

#include "sim/ptx/op.h"

/* Handler of a provided function, by name; NULL: none. */
op_fn *builtin_named(const char *name);

#endif
