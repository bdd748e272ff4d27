/* Handlers of modules, libraries and their kernels. */
#include "image/bytes.h"
#include "remote/worker/function_info.h"
#include "remote/worker/generated.h"
#include "remote/worker/image_upload.h"
#include "remote/worker/jit_options.h"

static CUresult image_load(enum cb_kind kind, const void *data, struct cb_jit *j, void **out)
{
    if (kind == CB_KIND_LIBRARY)
        return CB_CALL(cuLibraryLoadData)((CUlibrary *)out, data, j->option, j->value, j->count, NULL, NULL,
                                          0);
    return j->count ? CB_CALL(cuModuleLoadDataEx)((CUmodule *)out, data, j->count, j->option, j->value)
                    : CB_CALL(cuModuleLoadData)((CUmodule *)out, data);
}

static void image_unload(enum cb_kind kind, void *handle)
{
    if (kind == CB_KIND_LIBRARY)
        CB_CALL(cuLibraryUnload)(handle);
    else
        CB_CALL(cuModuleUnload)(handle);
}

static enum cb_kind image_kind(uint64_t id)
{
    return cb_object_is(id, CB_KIND_LIBRARY) ? CB_KIND_LIBRARY : CB_KIND_MODULE;
}

CUresult cb_on_IMAGE_LOAD(struct cb_request *q)
{
    struct cb_jit jit;
    size_t bytes;
    void *loaded = NULL;
    uint64_t id = cb_take_word(q);
    const void *data = cb_upload_named(q, &bytes), *start = data;
    enum cb_kind kind = image_kind(id);
    cb_jit_take(q, &jit);
    if (!cb_taken(q)) {
        cb_jit_free(&jit);
        return CB_MALFORMED;
    }
    if (!data) {
        cb_jit_free(&jit);
        cb_give_word(q, CB_CODE_UNKNOWN);
        cb_give_word(q, CUDA_SUCCESS);
        return CUDA_SUCCESS;
    }
    CUresult result = CUDA_ERROR_INVALID_IMAGE;
    /* The driver gets no length: the size that the image states must lie within the bytes received. */
    if (image_bytes(&start, bytes) && start == data) result = image_load(kind, data, &jit, &loaded);
    if (result == CUDA_SUCCESS) {
        CUresult named = cb_object_named(q, kind, id, loaded);
        if (named != CUDA_SUCCESS) image_unload(kind, loaded);
        if (named != CUDA_SUCCESS) result = named;
    }
    cb_give_word(q, result == CUDA_SUCCESS ? CB_CODE_DONE : CB_CODE_FAILED);
    cb_give_word(q, (uint64_t)result);
    cb_jit_give(q, &jit);
    cb_jit_free(&jit);
    if (result == CUDA_SUCCESS) return cb_describe_image(q, kind, loaded, 0);
    return result == CB_MALFORMED ? result : CUDA_SUCCESS;
}

CUresult cb_on_IMAGE_MORE(struct cb_request *q)
{
    uint64_t id = cb_take_word(q), from = cb_take_word(q);
    void *handle = cb_object_of(q, image_kind(id), id);
    if (!cb_taken(q)) return CB_MALFORMED;
    return handle ? cb_describe_image(q, image_kind(id), handle, from) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cb_on_IMAGE_UNLOAD(struct cb_request *q)
{
    uint64_t id = cb_take_word(q);
    void *handle = cb_object_of(q, image_kind(id), id);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (!handle) return CUDA_SUCCESS; /* its context was destroyed */
    image_unload(image_kind(id), handle);
    cb_object_gone(q, image_kind(id), id);
    return CUDA_SUCCESS;
}

static void *function_take(struct cb_request *q, enum cb_kind *kind)
{
    uint64_t id = cb_take_word(q);
    *kind = cb_object_is(id, CB_KIND_KERNEL) ? CB_KIND_KERNEL : CB_KIND_FUNCTION;
    return cb_object_of(q, *kind, id);
}

CUresult cb_on_FUNCTION(struct cb_request *q)
{
    enum cb_kind kind;
    void *handle = function_take(q, &kind);
    if (!cb_taken(q)) return CB_MALFORMED;
    return handle ? cb_describe_attributes(q, kind, handle) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cb_on_KERNEL_FUNCTION(struct cb_request *q)
{
    CUfunction f = NULL;
    CUkernel kernel = cb_object_of(q, CB_KIND_KERNEL, cb_take_word(q));
    if (!cb_taken(q)) return CB_MALFORMED;
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = CB_CALL(cuKernelGetFunction)(&f, kernel);
    return result == CUDA_SUCCESS ? cb_describe_function(q, CB_KIND_FUNCTION, f) : result;
}

CUresult cb_on_LIBRARY_MODULE(struct cb_request *q)
{
    CUmodule module = NULL;
    CUlibrary library = cb_object_of(q, CB_KIND_LIBRARY, cb_take_word(q));
    if (!cb_taken(q)) return CB_MALFORMED;
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = CB_CALL(cuLibraryGetModule)(&module, library);
    if (result != CUDA_SUCCESS) return result;
    cb_give_word(q, cb_object_name(q, CB_KIND_MODULE, module));
    return cb_describe_image(q, CB_KIND_MODULE, module, 0);
}
