/*
 * Contents of a program's code image: PTX text, a fatbin with PTX and cubins, or a cubin (an ELF file). The
 * simulated driver loads images by it; the shim computes from it the cost of an image's variables.
 *
 * Only declarations are read: names of kernels, their parameters and resource figures, and global variables.
 */
#ifndef CALABASH_IMAGE_H
#define CALABASH_IMAGE_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PARAMETERS_MAX 64

struct parameter {
    uint32_t offset, size;
};

struct entry_point { /* a kernel found in an image */
    char *name;
    struct parameter parameter[PARAMETERS_MAX];
    uint32_t parameter_count;
    uint32_t registers, shared_bytes, local_bytes, const_bytes, threads_max;
    bool has_parameters;
};

struct global_variable {
    char *name;
    uint64_t size;
    const void *initial; /* NULL: zero */
};

struct image {
    struct entry_point *entry;
    size_t entry_count;
    struct global_variable *global;
    size_t global_count;
    uint32_t ptx_version, binary_version;
    uint64_t code_bytes;
    char *ptx; /* the text it was read from, or that accompanies a cubin; NULL: none */
    size_t ptx_bytes;
};

void image_free(struct image *i);

/* Keep a copy of the text; return false without memory. */
bool image_keep_ptx(struct image *i, const char *text, size_t length);

/* For the readers: add a kernel, or a variable, of this name. NULL, or false, without memory. */
struct entry_point *image_add_entry(struct image *i, const char *name, size_t length);
bool image_add_global(struct image *i, const char *name, size_t length, uint64_t size);

#endif
