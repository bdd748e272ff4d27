/* Driver calls of modules. */
#include "sim/cuda/context/context.h"
#include "sim/cuda/module/jit_options.h"
#include "sim/cuda/module/module.h"
#include "sim/cuda/module/module_code.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream_work.h"

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    struct context *c;
    struct module *m;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
    result = module_load(image, 0, c, KIND_MODULE, &m);
    if (result == CUDA_SUCCESS) *module = (CUmodule)m;
    return result;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                                   CUjit_option *options, void **optionValues)
{
    if (numOptions && (!options || !optionValues)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuModuleLoadData(module, image);
    uint32_t most = jit_registers(numOptions, options, optionValues);
    if (result == CUDA_SUCCESS && most) module_limit_registers((struct module *)*module, most);
    jit_write_logs(numOptions, options, optionValues, code_report());
    return result;
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    return cuModuleLoadData(module, fatCubin);
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    struct context *c;
    struct module *m;
    void *data;
    size_t bytes;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!module || !fname) return CUDA_ERROR_INVALID_VALUE;
    result = module_read_file(fname, &data, &bytes);
    if (result != CUDA_SUCCESS) return result;
    result = module_load(data, bytes, c, KIND_MODULE, &m);
    free(data);
    if (result == CUDA_SUCCESS) *module = (CUmodule)m;
    return result;
}

/* The module of a library is the library, in the current context. */
static CUresult module_get(CUmodule handle, struct module **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct module *m = object_get(handle, KIND_MODULE);
    if (!m) m = object_get(handle, KIND_LIBRARY);
    *out = m;
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuModuleUnload(CUmodule hmod)
{
    struct module *m;
    struct context *c;
    {
        MODULES_LOCKED;
        OK_OR_RETURN(module_get(hmod, &m));
        /* it is unloaded with its library */
        if (m->object.kind == KIND_LIBRARY) return CUDA_ERROR_NOT_PERMITTED;
        c = m->context;
    }
    if (c && object_get(c, KIND_CONTEXT)) context_synchronize(c);
    module_unload(m);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    MODULES_LOCKED;
    struct module *m;
    struct function *f;
    CUresult result = module_get(hmod, &m);
    if (result != CUDA_SUCCESS) return result;
    if (!hfunc || !name) return CUDA_ERROR_INVALID_VALUE;
    result = module_function(m, name, &f);
    if (result == CUDA_SUCCESS) *hfunc = (CUfunction)f;
    return result;
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
    MODULES_LOCKED;
    struct module *m;
    OK_OR_RETURN(module_get(mod, &m));
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = (unsigned int)m->image->entry_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
    MODULES_LOCKED;
    struct module *m;
    OK_OR_RETURN(module_get(mod, &m));
    return functions ? module_functions(m, (void **)functions, numFunctions) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    MODULES_LOCKED;
    struct module *m;
    OK_OR_RETURN(module_get(hmod, &m));
    if (!name || (!dptr && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    struct context *c = m->context;
    if (!c) OK_OR_RETURN(context_enter(&c));
    return module_global(m, c, name, dptr, bytes);
}

EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    const char *text = getenv("CUDA_MODULE_LOADING");
    *mode = text && strcmp(text, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    MODULES_LOCKED;
    const struct function *f = object_get(hfunc, KIND_FUNCTION);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!hmod) return CUDA_ERROR_INVALID_VALUE;
    *hmod = (CUmodule)f->module;
    return CUDA_SUCCESS;
}
