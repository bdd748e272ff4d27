/* Images of code: modules and libraries, with their kernels and variables. */
#ifndef CALABASH_REMOTE_CLIENT_MODULE_CODE_IMAGE_H
#define CALABASH_REMOTE_CLIENT_MODULE_CODE_IMAGE_H

#include "remote/client/module/function_info.h"
#include "remote/client/module/jit_options.h"
#include "remote/wire/hash.h"
#include "remote/wire/objects.h"

/* Load an image of `kind` (a module or a library); `limit` as for image_bytes(); `jit` may be NULL. */
CUresult cb_image_load(enum cb_kind kind, const void *image, size_t limit, const struct cb_jit *jit,
                       uint64_t *out);
/* Add an image that the worker made from another; the answer describes it from here on. */
CUresult cb_image_adopt(struct cb_call *c, uint64_t id, enum cb_kind kind);
CUresult cb_image_unload(enum cb_kind kind, uint64_t id);
CUresult cb_image_find(enum cb_kind kind, uint64_t id, const char *name, struct cb_function **out);
CUresult cb_image_count(enum cb_kind kind, uint64_t id, unsigned int *out);
CUresult cb_image_list(enum cb_kind kind, uint64_t id, void **out, unsigned int capacity);

/* Variables are asked for once in each context. */
struct cb_variable {
    CUdeviceptr address;
    size_t bytes;
};
bool cb_image_variable(enum cb_kind kind, uint64_t id, const char *name, struct cb_variable *out);
void cb_image_keep_variable(enum cb_kind kind, uint64_t id, const char *name, const struct cb_variable *v);

/* Map a whole file; the caller unmaps `*bytes` + 1. */
CUresult cb_image_map(const char *name, void **out, size_t *bytes);
/* Send the parts of an image, for a command that the worker could not execute without it. */
CUresult cb_image_send(const void *image, size_t bytes);

#endif
