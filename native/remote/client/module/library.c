/* Hooks of libraries, which are modules without a context, and of their kernels. */
#include "remote/client/api/object_table.h"
#include "remote/client/module/code_image.h"
#include "remote_wrapped.h"

#include <sys/mman.h>

static CUresult library_load(CUlibrary *library, const void *code, size_t limit, const struct cb_jit *jit)
{
    uint64_t id;
    CB_OK(cb_image_load(CB_KIND_LIBRARY, code, limit, jit, &id));
    *library = (CUlibrary)(uintptr_t)id;
    return CUDA_SUCCESS;
}

/*
 * Options of the library itself are not sent: the worker has a copy of the image, and no functions of this
 * process.
 */
EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                  void **jitOptionsValues, unsigned int numJitOptions,
                                  CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                  unsigned int numLibraryOptions)
{
    struct cb_jit jit = {numJitOptions, jitOptions, jitOptionsValues};
    (void)libraryOptionValues;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library || !code || (numLibraryOptions && !libraryOptions)) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_jit_check(&jit));
    return library_load(library, code, 0, &jit);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                      void **jitOptionsValues, unsigned int numJitOptions,
                                      CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                      unsigned int numLibraryOptions)
{
    void *data;
    size_t bytes;
    struct cb_jit jit = {numJitOptions, jitOptions, jitOptionsValues};
    (void)libraryOptionValues;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library || !fileName || (numLibraryOptions && !libraryOptions)) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_jit_check(&jit));
    CB_OK(cb_image_map(fileName, &data, &bytes));
    CUresult result = library_load(library, data, bytes, &jit);
    munmap(data, bytes + 1);
    return result;
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    return cb_image_unload(CB_KIND_LIBRARY, (uintptr_t)library);
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    struct cb_function *f;
    if (!pKernel) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_image_find(CB_KIND_LIBRARY, (uintptr_t)library, name, &f));
    *pKernel = (CUkernel)(uintptr_t)f->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
    return cb_image_count(CB_KIND_LIBRARY, (uintptr_t)lib, count);
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    return cb_image_list(CB_KIND_LIBRARY, (uintptr_t)lib, (void **)kernels, numKernels);
}

EXPORT CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    struct cb_call call;
    if (!pMod) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_call_begin(&call, CB_OP_LIBRARY_MODULE, CB_IN_CONTEXT));
    cb_put_handle(&call, CB_KIND_LIBRARY, (uintptr_t)library);
    CB_OK(cb_call_ask(&call));
    uint64_t id = cb_take_word(&call);
    CB_OK(cb_image_adopt(&call, id, CB_KIND_MODULE));
    *pMod = (CUmodule)(uintptr_t)id;
    return CUDA_SUCCESS;
}

typedef CUresult (*ask_fn)(CUdeviceptr *, size_t *, CUlibrary, const char *);

static CUresult library_variable(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name,
                                 ask_fn ask)
{
    struct cb_variable v;
    if (!name || (!dptr && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (!cb_image_variable(CB_KIND_LIBRARY, (uintptr_t)library, name, &v)) {
        CB_OK(ask(&v.address, &v.bytes, library, name));
        cb_image_keep_variable(CB_KIND_LIBRARY, (uintptr_t)library, name, &v);
    }
    if (dptr) *dptr = v.address;
    if (bytes) *bytes = v.bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    return library_variable(dptr, bytes, library, name, cb_remote_cuLibraryGetGlobal);
}

EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    return library_variable(dptr, bytes, library, name, cb_remote_cuLibraryGetManaged);
}

/* ---- kernels ---- */

EXPORT CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    const struct cb_function *f = cb_function_of((uintptr_t)kernel);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f || !cb_object_is(f->image, CB_KIND_LIBRARY)) return CUDA_ERROR_INVALID_HANDLE;
    if (!pLib) return CUDA_ERROR_INVALID_VALUE;
    *pLib = (CUlibrary)(uintptr_t)f->image;
    return CUDA_SUCCESS;
}

/* The function in the current context: known from here on like the kernel. */
EXPORT CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    struct cb_call call;
    const struct cb_function *k = cb_function_of((uintptr_t)kernel);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!k) return CUDA_ERROR_INVALID_HANDLE;
    if (!pFunc) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_call_begin(&call, CB_OP_KERNEL_FUNCTION, CB_IN_CONTEXT));
    cb_put_word(&call, (uintptr_t)kernel);
    CB_OK(cb_call_ask(&call));
    const struct cb_function *f = cb_function_take(&call, k->image);
    cb_call_end(&call);
    if (!f) return CUDA_ERROR_OUT_OF_MEMORY;
    *pFunc = (CUfunction)(uintptr_t)f->id;
    return CUDA_SUCCESS;
}
