/* Modules, libraries and their functions. */
#ifndef CALABASH_SIM_CUDA_MODULE_MODULE_H
#define CALABASH_SIM_CUDA_MODULE_MODULE_H

#include "image/image.h"
#include "sim/cuda/launch/kernel_registry.h"
#include "sim/cuda/module/module_code.h"
#include "sim/cuda/process/object.h"

struct placed_global;

struct module {
    struct object object;    /* KIND_MODULE or KIND_LIBRARY */
    struct context *context; /* NULL: a library */
    struct image *image;
    struct code *code;          /* NULL: no PTX */
    struct function **function; /* one per entry, made on demand */
    struct placed_global *globals;
    struct module *next;
};

struct function {
    struct object object;
    struct module *module;
    const struct entry_point *entry;
    const struct routine *routine; /* its PTX; NULL: none */
    const struct kernel *kernel;   /* of the registry; NULL: none */
    int attribute_shared_max, attribute_carveout;
    bool told; /* it was reported as unknown */
};

/*
 * Until the end of the block no other thread unloads a module, so that a handle can be checked and its objects
 * used.
 */
#define MODULES_LOCKED \
    __attribute__((cleanup(modules_unlock), unused)) const int modules_held = modules_lock()
int modules_lock(void);
void modules_unlock(const int *held);
CUresult module_load(const void *data, size_t limit, struct context *c, enum kind kind, struct module **out);
/* Apply CU_JIT_MAX_REGISTERS. */
void module_limit_registers(struct module *m, uint32_t most);
void module_unload(struct module *m);
void module_drop_context(struct context *c);
CUresult module_function(struct module *m, const char *name, struct function **out);
/* Handles of the first `capacity` functions. */
CUresult module_functions(struct module *m, void **out, unsigned int capacity);
CUresult module_global(struct module *m, struct context *c, const char *name, CUdeviceptr *address,
                       size_t *bytes);
/* Read an image file; the caller frees it. */
CUresult module_read_file(const char *name, void **out, size_t *bytes);
const struct image *function_image(const struct function *f);

#endif
