/* Images of code: put together from their parts, loaded, and described. */
#include "image/bytes.h"
#include "remote/worker/generated.h"
#include "remote/worker/session.h"

#define IMAGE_MAX      (1ull << 31)
#define FUNCTIONS_MAX  65536u
#define PARAMETERS_MAX 512u

static struct {
    uint8_t *data;
    size_t bytes, filled;
} image;

static void forget(void)
{
    free(image.data);
    image.data = NULL;
    image.bytes = image.filled = 0;
}

CUresult cb_on_IMAGE(struct cb_request *q)
{
    uint64_t at = cb_take_word(q), bytes = cb_take_word(q), part = cb_take_word(q);
    if (!cb_taken(q) || CB_WORDS(part) != q->bulk || bytes > IMAGE_MAX || part > bytes || at > bytes - part)
        return CB_MALFORMED;
    if (at == 0) {
        forget();
        image.data = calloc(1, CB_WORDS(bytes) + 8); /* a zero ends text */
        image.bytes = bytes;
    }
    if (!image.data) return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes != image.bytes || at != image.filled) return CB_MALFORMED;
    image.filled += part;
    return cb_bulk_receive(q, image.data + at, CB_WORDS(part)) ? CUDA_SUCCESS : CB_MALFORMED;
}

struct asker { /* the same questions about functions of modules and kernels of libraries */
    enum cb_kind kind;
    CUresult (*name)(const char **, void *);
    CUresult (*parameter)(void *, size_t, size_t *, size_t *);
    int threads_max;
};

static CUresult describe(struct cb_request *q, const struct asker *a, void *handle)
{
    const char *name;
    struct {
        uint32_t offset, bytes;
    } parameter[PARAMETERS_MAX];
    uint32_t count = 0;
    size_t offset, bytes;
    CUresult result = a->name(&name, handle);
    if (result != CUDA_SUCCESS) return result;
    while (count < PARAMETERS_MAX && a->parameter(handle, count, &offset, &bytes) == CUDA_SUCCESS) {
        parameter[count].offset = (uint32_t)offset;
        parameter[count++].bytes = (uint32_t)bytes;
    }
    cb_give_word(q, cb_object_name(q, a->kind, handle));
    cb_give_string(q, name);
    cb_give_word(q, (uint64_t)a->threads_max);
    cb_give_word(q, count);
    cb_give_bytes(q, parameter, count * sizeof parameter[0]);
    return CUDA_SUCCESS;
}

static CUresult describe_module(struct cb_request *q, CUmodule module)
{
    unsigned int count = 0;
    CUresult result = CB_CALL(cuModuleGetFunctionCount)(&count, module);
    if (result != CUDA_SUCCESS || count > FUNCTIONS_MAX) return result;
    CUfunction *functions = calloc(count + 1, sizeof(CUfunction));
    if (!functions) return CUDA_ERROR_OUT_OF_MEMORY;
    result = CB_CALL(cuModuleEnumerateFunctions)(functions, count, module);
    cb_give_word(q, count);
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct asker a = {CB_KIND_FUNCTION, (void *)CB_CALL(cuFuncGetName),
                          (void *)CB_CALL(cuFuncGetParamInfo), 1024};
        CB_CALL(cuFuncGetAttribute)(&a.threads_max, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, functions[i]);
        result = describe(q, &a, functions[i]);
    }
    free(functions);
    return result;
}

static CUresult describe_library(struct cb_request *q, CUlibrary library)
{
    unsigned int count = 0;
    CUresult result = CB_CALL(cuLibraryGetKernelCount)(&count, library);
    if (result != CUDA_SUCCESS || count > FUNCTIONS_MAX) return result;
    CUkernel *kernels = calloc(count + 1, sizeof(CUkernel));
    if (!kernels) return CUDA_ERROR_OUT_OF_MEMORY;
    result = CB_CALL(cuLibraryEnumerateKernels)(kernels, count, library);
    cb_give_word(q, count);
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct asker a = {CB_KIND_KERNEL, (void *)CB_CALL(cuKernelGetName),
                          (void *)CB_CALL(cuKernelGetParamInfo), 1024};
        CB_CALL(cuKernelGetAttribute)(&a.threads_max, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernels[i], 0);
        result = describe(q, &a, kernels[i]);
    }
    free(kernels);
    return result;
}

static CUresult load_module(struct cb_request *q, uint64_t id)
{
    CUmodule module;
    CUresult result = CB_CALL(cuModuleLoadData)(&module, image.data);
    if (result != CUDA_SUCCESS) return result;
    result = cb_object_named(q, CB_KIND_MODULE, id, module);
    return result == CUDA_SUCCESS ? describe_module(q, module) : result;
}

static CUresult load_library(struct cb_request *q, uint64_t id)
{
    CUlibrary library;
    CUresult result = CB_CALL(cuLibraryLoadData)(&library, image.data, NULL, NULL, 0, NULL, NULL, 0);
    if (result != CUDA_SUCCESS) return result;
    result = cb_object_named(q, CB_KIND_LIBRARY, id, library);
    return result == CUDA_SUCCESS ? describe_library(q, library) : result;
}

CUresult cb_on_IMAGE_LOAD(struct cb_request *q)
{
    uint64_t id = cb_take_word(q), bytes = cb_take_word(q);
    if (!cb_taken(q)) return CB_MALFORMED;
    const void *start = image.data;
    CUresult result = CUDA_ERROR_INVALID_IMAGE;
    /* The driver gets no length either: what the image says of itself must lie within what has come. */
    if (image.data && image.filled == bytes && image_bytes(&start, bytes) && start == image.data)
        result = cb_object_is(id, CB_KIND_LIBRARY) ? load_library(q, id) : load_module(q, id);
    forget();
    return result;
}
