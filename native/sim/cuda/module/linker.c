/*
 * Driver calls of the linker. Inputs must contain PTX: their texts are joined, and the result is the image that
 * the program loads. A mark between the texts ends the scope of what a module does not export; at the end
 * stands the register limit, if one was given.
 */
#include "image/image.h"
#include "image/parse.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/module/jit_options.h"
#include "sim/cuda/module/module.h"
#include "sim/cuda/module/module_code.h"
#include "sim/cuda/process/object.h"

#include <stdio.h>

#define FATBIN_MAGIC 0xBA55ED50u
#define UNIT_MARK    "\n.calabash_unit\n"

struct link {
    struct object object;
    uint32_t sm;
    char *text;
    size_t length, capacity;
    unsigned int count; /* the options of the creation: the log is written at completion */
    CUjit_option *option;
    void **value; /* the program's own array */
};

static bool text_append(struct link *l, const char *text, size_t length)
{
    size_t need = l->length + length + sizeof UNIT_MARK;
    if (need > l->capacity) {
        char *bigger = realloc(l->text, 2 * need);
        if (!bigger) return false;
        l->text = bigger;
        l->capacity = 2 * need;
    }
    if (l->length) {
        memcpy(l->text + l->length, UNIT_MARK, sizeof UNIT_MARK - 1);
        l->length += sizeof UNIT_MARK - 1;
    }
    memcpy(l->text + l->length, text, length);
    l->length += length;
    l->text[l->length] = 0;
    return true;
}

static CUresult image_append(struct link *l, const void *data, size_t size)
{
    struct image *i;
    OK_OR_RETURN(image_parse(data, size, l->sm, &i));
    CUresult result = !i->ptx                                ? CUDA_ERROR_NOT_SUPPORTED
                      : text_append(l, i->ptx, i->ptx_bytes) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_OUT_OF_MEMORY;
    image_free(i);
    return result;
}

/* Add the fat binaries within objects and archives of the host. An input without PTX adds nothing. */
static CUresult embedded_append(struct link *l, const uint8_t *data, size_t size)
{
    for (size_t at = 0; at + 16 < size; at += 4) {
        uint32_t magic;
        uint64_t bytes;
        memcpy(&magic, data + at, sizeof magic);
        if (magic != FATBIN_MAGIC) continue;
        memcpy(&bytes, data + at + 8, sizeof bytes);
        if (bytes > size - at - 16) continue;
        uint8_t *copy = malloc(bytes + 16); /* aligned as the format requires */
        if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(copy, data + at, bytes + 16);
        CUresult result = image_append(l, copy, bytes + 16);
        free(copy);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) return result;
        at += (bytes + 12) / 4 * 4;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues,
                                CUlinkState *stateOut)
{
    CONTEXT_OR_RETURN(c);
    if (!stateOut || (numOptions && (!options || !optionValues))) return CUDA_ERROR_INVALID_VALUE;
    struct link *l = object_new(KIND_LINK, sizeof *l);
    if (!l) return CUDA_ERROR_OUT_OF_MEMORY;
    l->sm = c->device->profile->compute_major * 10 + c->device->profile->compute_minor;
    l->option = calloc(numOptions + 1, sizeof *l->option);
    if (!l->option) {
        object_free(l);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (numOptions) memcpy(l->option, options, numOptions * sizeof *options);
    l->count = numOptions;
    l->value = optionValues;
    *stateOut = (CUlinkState)l;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
                                 const char *name, unsigned int numOptions, CUjit_option *options,
                                 void **optionValues)
{
    struct link *l = object_get(state, KIND_LINK);
    (void)name;
    (void)options;
    (void)optionValues;
    (void)numOptions;
    if (!l) return CUDA_ERROR_INVALID_HANDLE;
    if (!data || !size) return CUDA_ERROR_INVALID_VALUE;
    switch (type) {
    case CU_JIT_INPUT_PTX:
        return text_append(l, data, strnlen(data, size)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    case CU_JIT_INPUT_FATBINARY:
        return image_append(l, data, size);
    case CU_JIT_INPUT_OBJECT:
    case CU_JIT_INPUT_LIBRARY:
        return embedded_append(l, data, size);
    case CU_JIT_INPUT_CUBIN:
        /* A cubin may be the output of another link, which is text. */
        return memcmp(data, "\177ELF", size < 4 ? size : 4) == 0 ? CUDA_ERROR_NOT_SUPPORTED
                                                                 : image_append(l, data, size);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

EXPORT CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
                                 unsigned int numOptions, CUjit_option *options, void **optionValues)
{
    void *data;
    size_t bytes;
    if (!object_get(state, KIND_LINK)) return CUDA_ERROR_INVALID_HANDLE;
    OK_OR_RETURN(module_read_file(path, &data, &bytes));
    CUresult result = cuLinkAddData_v2(state, type, data, bytes, path, numOptions, options, optionValues);
    free(data);
    return result;
}

EXPORT CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
    struct link *l = object_get(state, KIND_LINK);
    struct code *code = NULL;
    if (!l) return CUDA_ERROR_INVALID_HANDLE;
    if (!cubinOut) return CUDA_ERROR_INVALID_VALUE;
    if (!l->text) return CUDA_ERROR_INVALID_IMAGE;
    uint32_t most = jit_registers(l->count, l->option, l->value);
    char limit[64];
    snprintf(limit, sizeof limit, ".calabash_registers %u\n", most);
    if (most && !text_append(l, limit, strlen(limit))) return CUDA_ERROR_OUT_OF_MEMORY;
    struct image joined = {.ptx = l->text, .ptx_bytes = l->length};
    CUresult result = code_compile(&joined, &code);
    jit_write_logs(l->count, l->option, l->value, code_report());
    code_free(code);
    if (result != CUDA_SUCCESS) return result;
    *cubinOut = l->text;
    if (sizeOut) *sizeOut = l->length + 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkDestroy(CUlinkState state)
{
    struct link *l = object_get(state, KIND_LINK);
    if (!l) return CUDA_ERROR_INVALID_HANDLE;
    free(l->text);
    free(l->option);
    object_free(l);
    return CUDA_SUCCESS;
}
