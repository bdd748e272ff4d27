/* Functions that the driver gives to programs. */
#ifndef CALABASH_SIM_PTX_BUILTIN_H
#define CALABASH_SIM_PTX_BUILTIN_H

#include "sim/ptx/op.h"

/* Functions that the driver gives. */
op_fn *builtin_named(const char *name);

#endif
