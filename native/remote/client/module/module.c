/* Hooks of modules: loading, and look-up of functions and variables. */
#include "remote/client/api/object_table.h"
#include "remote/client/module/code_image.h"
#include "remote_wrapped.h"

#include <sys/mman.h>

static CUresult module_load(CUmodule *module, const void *image, size_t limit, const struct cb_jit *jit)
{
    uint64_t id;
    CUcontext current = NULL;
    CB_OK(cuCtxGetCurrent(&current));
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_image_load(CB_KIND_MODULE, image, limit, jit, &id));
    *module = (CUmodule)(uintptr_t)id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return module_load(module, image, 0, NULL);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    return module_load(module, fatCubin, 0, NULL);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                                   CUjit_option *options, void **optionValues)
{
    struct cb_jit jit = {numOptions, options, optionValues};
    CB_OK(cb_jit_check(&jit));
    return module_load(module, image, 0, &jit);
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    void *data;
    size_t bytes;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!module || !fname) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_image_map(fname, &data, &bytes));
    CUresult result = module_load(module, data, bytes, NULL);
    munmap(data, bytes + 1);
    return result;
}

EXPORT CUresult cuModuleUnload(CUmodule hmod)
{
    return cb_image_unload(CB_KIND_MODULE, (uintptr_t)hmod);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    struct cb_function *f;
    if (!hfunc) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_image_find(CB_KIND_MODULE, (uintptr_t)hmod, name, &f));
    CB_OK(cb_function_load_attributes(f)); /* a driver that loads lazily does so now, and may fail */
    *hfunc = (CUfunction)(uintptr_t)f->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
    return cb_image_count(CB_KIND_MODULE, (uintptr_t)mod, count);
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
    return cb_image_list(CB_KIND_MODULE, (uintptr_t)mod, (void **)functions, numFunctions);
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    struct cb_variable v;
    if (!name || (!dptr && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (!cb_image_variable(CB_KIND_MODULE, (uintptr_t)hmod, name, &v)) {
        CB_OK(cb_remote_cuModuleGetGlobal_v2(&v.address, &v.bytes, hmod, name));
        cb_image_keep_variable(CB_KIND_MODULE, (uintptr_t)hmod, name, &v);
    }
    if (dptr) *dptr = v.address;
    if (bytes) *bytes = v.bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    const struct cb_function *f = cb_function_of((uintptr_t)hfunc);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!hmod) return CUDA_ERROR_INVALID_VALUE;
    if (cb_object_is(f->image, CB_KIND_LIBRARY)) return cuLibraryGetModule(hmod, (CUlibrary)f->image);
    *hmod = (CUmodule)(uintptr_t)f->image;
    return CUDA_SUCCESS;
}
