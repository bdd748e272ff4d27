/* Output of the compiler, in arrays that grow up to a limit. */
#ifndef CALABASH_SIM_PTX_STORAGE_H
#define CALABASH_SIM_PTX_STORAGE_H

#include "sim/ptx/compiler.h"

/* Reserve space for `count` + 1 elements; return false without memory. */
bool array_reserve(struct compiler *c, void *array, uint32_t *capacity, uint32_t count, size_t each);
struct op *emit(struct compiler *c, op_fn *run);
bool list_add(struct compiler *c, uint32_t value);
uint32_t register_new(struct compiler *c, uint32_t bytes);
uint32_t predicate_new(struct compiler *c);
uint32_t constant_place(struct compiler *c, uint64_t bits, uint32_t width);
uint32_t constant_address(struct compiler *c, uint32_t target, bool function, uint64_t addend,
                          uint32_t width);
struct variable *variable_new(struct compiler *c, uint32_t *index);
struct routine *function_new(struct compiler *c, const char *name, size_t length, uint32_t *index);
void out_of_memory(struct compiler *c);

#endif
