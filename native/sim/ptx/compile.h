/* The compiler of PTX. */
#ifndef CALABASH_SIM_PTX_COMPILE_H
#define CALABASH_SIM_PTX_COMPILE_H

#include "sim/ptx/program.h"

/* NULL when the text has errors (they are in the report) or memory is out. */
struct program *ptx_compile(const char *text, size_t length, struct report *r);

#endif
