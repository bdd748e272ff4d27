#include "remote/client/module/function_info.h"

#include "remote/client/api/object_table.h"
#include "remote_wrapped.h"

struct cb_function *cb_function_of(uint64_t handle)
{
    void **data = cb_object_data(handle, CB_KIND_FUNCTION);
    if (!data) data = cb_object_data(handle, CB_KIND_KERNEL);
    return data ? *data : NULL;
}

/* ---- descriptions from the worker ---- */

static void launch_limits_set(struct cb_function *f)
{
    const struct cb_attribute *a = f->attribute;
    int threads = a[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK].value;
    int shared = a[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES].value;
    f->threads_max = threads > 0 ? (uint32_t)threads : 0;
    f->shared_max = shared > 0 ? (uint32_t)shared : 0;
}

static void attributes_take(struct cb_call *c, struct cb_function *f)
{
    f->device = (CUdevice)cb_take_word(c);
    cb_take_bytes(c, f->attribute, sizeof f->attribute);
    f->known = true;
    f->changes++;
    launch_limits_set(f);
}

static bool parameters_take(struct cb_call *c, struct cb_function *f, uint32_t count)
{
    f->parameters = count;
    cb_take_bytes(c, f->parameter, count * sizeof f->parameter[0]);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t end = (uint64_t)f->parameter[i].offset + f->parameter[i].bytes;
        if (end > CB_PARAMETER_BYTES) return false;
        if (end > f->parameter_bytes) f->parameter_bytes = (uint32_t)end;
    }
    return true;
}

struct cb_function *cb_function_take(struct cb_call *c, uint64_t image)
{
    static uint64_t serial;
    uint64_t id = cb_take_word(c), count;
    bool known = cb_take_word(c) != 0;
    const char *name = cb_take_string(c);
    count = cb_take_word(c);
    if (!name || count > CB_PARAMETERS_MAX) return NULL;
    struct cb_function *f = calloc(1, sizeof *f + count * sizeof f->parameter[0]);
    if (!f || !(f->name = strdup(name))) {
        free(f);
        return NULL;
    }
    f->id = id;
    f->image = image;
    f->serial = __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED);
    bool good = parameters_take(c, f, (uint32_t)count);
    if (known) attributes_take(c, f);
    if (good && cb_object_learn(id, f)) return f;
    free(f->name);
    free(f);
    return NULL;
}

void cb_function_drop(struct cb_function *f)
{
    if (cb_function_of(f->id) == f) cb_drop_object(f->id);
    free(f->name);
    free(f);
}

CUresult cb_function_load_attributes(struct cb_function *f)
{
    struct cb_call call;
    if (__atomic_load_n(&f->known, __ATOMIC_ACQUIRE)) return CUDA_SUCCESS;
    CB_OK(cb_call_begin(&call, CB_OP_FUNCTION, CB_ANYWHERE));
    cb_put_word(&call, f->id);
    CB_OK(cb_call_ask(&call));
    attributes_take(&call, f);
    cb_call_end(&call);
    return CUDA_SUCCESS;
}

/* ---- names and parameters ---- */

static CUresult function_name(const char **name, uint64_t handle)
{
    const struct cb_function *f = cb_function_of(handle);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = f->name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
    return function_name(name, (uintptr_t)hfunc);
}

EXPORT CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
    return function_name(name, (uintptr_t)hfunc);
}

static CUresult function_parameter(uint64_t handle, size_t index, size_t *offset, size_t *size)
{
    const struct cb_function *f = cb_function_of(handle);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!offset || index >= f->parameters) return CUDA_ERROR_INVALID_VALUE;
    *offset = f->parameter[index].offset;
    if (size) *size = f->parameter[index].bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
    return function_parameter((uintptr_t)func, paramIndex, paramOffset, paramSize);
}

EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                                     size_t *paramSize)
{
    return function_parameter((uintptr_t)kernel, paramIndex, paramOffset, paramSize);
}

/* ---- attributes ---- */

static CUresult function_attribute(int *pi, CUfunction_attribute attrib, struct cb_function *f)
{
    if (!pi || (unsigned)attrib >= CB_FUNCTION_ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_function_load_attributes(f));
    if (f->attribute[attrib].result == CUDA_SUCCESS) *pi = f->attribute[attrib].value;
    return f->attribute[attrib].result;
}

EXPORT CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    struct cb_function *f = cb_function_of((uintptr_t)hfunc);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    return f ? function_attribute(pi, attrib, f) : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
    struct cb_function *f = cb_function_of((uintptr_t)kernel);
    if (!f || !f->known || f->device != dev) return cb_remote_cuKernelGetAttribute(pi, attrib, kernel, dev);
    return function_attribute(pi, attrib, f);
}

/* Return true if the attribute has the value already; then it is not sent. */
static bool attribute_has_value(const struct cb_function *f, CUfunction_attribute attrib, int value)
{
    return f && f->known && (unsigned)attrib < CB_FUNCTION_ATTRIBUTES &&
           f->attribute[attrib].result == CUDA_SUCCESS && f->attribute[attrib].value == value;
}

static void attribute_store(struct cb_function *f, CUfunction_attribute attrib, int value)
{
    if (!f || (unsigned)attrib >= CB_FUNCTION_ATTRIBUTES) return;
    f->attribute[attrib] = (struct cb_attribute){value, CUDA_SUCCESS};
    f->changes++;
    launch_limits_set(f);
}

/*
 * The value that a program sets and the value that it reads afterwards need not be equal: only for these two
 * they are known to be.
 */
static bool attribute_reads_back(CUfunction_attribute attrib)
{
    return attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
           attrib == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    struct cb_function *f = cb_function_of((uintptr_t)hfunc);
    if (attribute_reads_back(attrib) && attribute_has_value(f, attrib, value)) return CUDA_SUCCESS;
    CB_OK(cb_remote_cuFuncSetAttribute(hfunc, attrib, value));
    if (f && attribute_reads_back(attrib))
        attribute_store(f, attrib, value);
    else if (f)
        f->known = false;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
    struct cb_function *f = cb_function_of((uintptr_t)kernel);
    bool ours = f && f->device == dev;
    if (ours && attribute_reads_back(attrib) && attribute_has_value(f, attrib, val)) return CUDA_SUCCESS;
    CB_OK(cb_remote_cuKernelSetAttribute(attrib, val, kernel, dev));
    if (ours && attribute_reads_back(attrib))
        attribute_store(f, attrib, val);
    else if (ours)
        f->known = false;
    return CUDA_SUCCESS;
}
