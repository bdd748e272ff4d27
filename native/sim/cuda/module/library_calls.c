/* Driver calls of libraries, which are modules without a context. */
#include "sim/cuda/context/context.h"
#include "sim/cuda/module/jit_options.h"
#include "sim/cuda/module/module.h"
#include "sim/cuda/module/module_code.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream_work.h"

static CUresult library_load(CUlibrary *library, const void *code, size_t limit)
{
    struct module *m;
    CUresult result = module_load(code, limit, NULL, KIND_LIBRARY, &m);
    if (result == CUDA_SUCCESS) *library = (CUlibrary)m;
    return result;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                  void **jitOptionsValues, unsigned int numJitOptions,
                                  CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                  unsigned int numLibraryOptions)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library || !code || (numJitOptions && (!jitOptions || !jitOptionsValues)) ||
        (numLibraryOptions && !libraryOptions))
        return CUDA_ERROR_INVALID_VALUE;
    (void)libraryOptionValues;
    CUresult result = library_load(library, code, 0);
    jit_write_logs(numJitOptions, jitOptions, jitOptionsValues, code_report());
    return result;
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                      void **jitOptionsValues, unsigned int numJitOptions,
                                      CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                      unsigned int numLibraryOptions)
{
    void *data;
    size_t bytes;
    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library || !fileName) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = module_read_file(fileName, &data, &bytes);
    if (result != CUDA_SUCCESS) return result;
    result = library_load(library, data, bytes);
    free(data);
    return result;
}

static CUresult library_get(CUlibrary handle, struct module **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct module *m = object_get(handle, KIND_LIBRARY);
    *out = m;
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    struct module *m;
    OK_OR_RETURN(library_get(library, &m));
    contexts_wait(); /* its kernels may be running in any context */
    module_unload(m);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    MODULES_LOCKED;
    struct module *m;
    struct function *f;
    CUresult result = library_get(library, &m);
    if (result != CUDA_SUCCESS) return result;
    if (!pKernel || !name) return CUDA_ERROR_INVALID_VALUE;
    result = module_function(m, name, &f);
    if (result == CUDA_SUCCESS) *pKernel = (CUkernel)f;
    return result;
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
    MODULES_LOCKED;
    struct module *m;
    OK_OR_RETURN(library_get(lib, &m));
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = (unsigned int)m->image->entry_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    MODULES_LOCKED;
    struct module *m;
    OK_OR_RETURN(library_get(lib, &m));
    return kernels ? module_functions(m, (void **)kernels, numKernels) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    struct context *c;
    struct module *m;
    OK_OR_RETURN(context_enter(&c));
    OK_OR_RETURN(library_get(library, &m));
    if (!pMod) return CUDA_ERROR_INVALID_VALUE;
    *pMod = (CUmodule)m;
    return CUDA_SUCCESS;
}

static CUresult library_global(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    MODULES_LOCKED;
    struct context *c;
    struct module *m;
    CUresult result = context_enter(&c);
    if (result == CUDA_SUCCESS) result = library_get(library, &m);
    if (result != CUDA_SUCCESS) return result;
    if (!name || (!dptr && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    return module_global(m, c, name, dptr, bytes);
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    return library_global(dptr, bytes, library, name);
}

EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    return library_global(dptr, bytes, library, name);
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    MODULES_LOCKED;
    const struct function *f = object_get(kernel, KIND_FUNCTION);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f || f->module->object.kind != KIND_LIBRARY) return CUDA_ERROR_INVALID_HANDLE;
    if (!pLib) return CUDA_ERROR_INVALID_VALUE;
    *pLib = (CUlibrary)f->module;
    return CUDA_SUCCESS;
}
