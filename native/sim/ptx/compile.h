/* The PTX compiler. */
#ifndef CALABASH_SIM_PTX_COMPILE_H
#define CALABASH_SIM_PTX_COMPILE_H

#include "sim/ptx/program.h"

/* Compile a text; NULL if it has errors (they are in the report) or there is no memory. */
struct program *ptx_compile(const char *text, size_t length, struct report *r);

#endif
