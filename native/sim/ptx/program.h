/* A compiled module: functions, variables, constants. */
#ifndef CALABASH_SIM_PTX_PROGRAM_H
#define CALABASH_SIM_PTX_PROGRAM_H

#include "sim/ptx/op.h"
#include "sim/ptx/report.h"

struct reloc { /* the address of a symbol is to be written at `offset` */
    uint64_t offset, addend;
    uint32_t target; /* index of a variable; of a function with `function` */
    uint8_t width;   /* 4 or 8 bytes */
    bool function, generic;
};

struct variable {
    char *name;
    enum space space;
    enum type type;
    uint32_t alignment;
    uint64_t bytes;
    uint64_t offset; /* in shared, local and parameter space */
    bool external, visible, unsized;
    uint8_t *initial;
    uint64_t initial_bytes;
    struct reloc *reloc;
    uint32_t reloc_count;
};

struct parameter_place {
    uint32_t offset, bytes;
};

struct routine {
    char *name;
    bool entry, external, visible, weak, defined;
    struct parameter_place *parameter, *result;
    uint32_t parameter_count, result_count;
    uint32_t parameter_bytes; /* of an entry's parameter buffer */
    struct op *op;
    uint32_t op_count;
    uint32_t *list;
    uint32_t list_count;
    uint32_t register_bytes, local_bytes;
    /* its own static shared memory; of an entry including all functions that it can reach */
    uint32_t shared_bytes;
    uint32_t threads_max, threads_required[3];
    char *refused; /* the reason why it cannot be run, or NULL */
    uint32_t refused_line;
    uint32_t register_words; /* of all virtual registers */
    op_fn *builtin;
    bool empty; /* nothing but a return */
};

struct program {
    struct variable *variable;
    uint32_t variable_count;
    struct routine **function;
    uint32_t function_count;
    uint8_t *constant;
    uint32_t constant_bytes;
    struct reloc *reloc; /* in the constants: all 32 lanes of one get the address */
    uint32_t reloc_count;
    uint64_t shared_bytes; /* static shared memory of the module */
    bool has_dynamic_shared;
    uint32_t registers_max; /* of a kernel; 0: not given */
};

void program_free(struct program *p);
struct routine *program_entry(const struct program *p, const char *name);

#endif
