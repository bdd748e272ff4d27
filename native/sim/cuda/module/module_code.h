/* Compiled PTX of modules: compiled once, its variables placed in each context that uses them. */
#ifndef CALABASH_SIM_CUDA_MODULE_MODULE_CODE_H
#define CALABASH_SIM_CUDA_MODULE_MODULE_CODE_H

#include "image/image.h"
#include "sim/cuda/context/context.h"
#include "sim/ptx/compile.h"
#include "sim/ptx/report.h"
#include "sim/ptx/run.h"

struct code;

/* *out is NULL if the image has no PTX. The compiler's messages go to code_report. */
CUresult code_compile(const struct image *i, struct code **out);
/* Report on the last image that this thread loaded. */
const struct report *code_report(void);
void code_free(struct code *c);

const struct program *code_program(const struct code *c);
/*
 * Return true if the module has a variable CODE_BY_NAME: then its kernels with registered names are the
 * registered kernels.
 */
#define CODE_BY_NAME "calabash_kernels_by_name"
bool code_by_name(const struct code *c);
const struct routine *code_entry(const struct code *c, const char *name);
/* Bytes of the module's static shared memory, and of its constants. */
uint32_t code_shared(const struct code *c);
uint32_t code_constants(const struct code *c);
/* Estimated registers for each thread of the kernel: few of the virtual ones are in use at the same time. */
uint32_t code_registers(const struct code *c, const struct routine *r);
/* Place the variables in `context`, with their initial values. */
CUresult code_place(struct code *c, struct context *context, void *owner, const struct placed **out);
/* Address and size of a variable; CUDA_ERROR_NOT_FOUND. */
CUresult code_global(struct code *c, struct context *context, void *owner, const char *name,
                     CUdeviceptr *address, size_t *bytes);
/* Free the variables in `context`; NULL: in all contexts. */
void code_drop(struct code *c, const struct context *context);

#endif
