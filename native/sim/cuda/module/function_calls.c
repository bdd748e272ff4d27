/* Driver calls about functions: attributes, parameters, occupancy. */
#include "image/image.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/module/module.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"

static struct function *function_get(const void *handle)
{
    return process.ready ? object_get(handle, KIND_FUNCTION) : NULL;
}

#define FUNCTION_OR_RETURN(f, handle)                      \
    MODULES_LOCKED;                                        \
    struct function *f = function_get(handle);             \
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED; \
    if (!f) return CUDA_ERROR_INVALID_HANDLE

static CUresult function_attribute(int *pi, CUfunction_attribute a, const struct function *f)
{
    const struct image *i = function_image(f);
    if (!pi) return CUDA_ERROR_INVALID_VALUE;
    switch (a) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *pi = (int)f->entry->threads_max;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *pi = (int)f->entry->shared_bytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        *pi = (int)f->entry->const_bytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *pi = (int)f->entry->local_bytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *pi = (int)f->entry->registers;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        *pi = (int)(i->ptx_version ? i->ptx_version : i->binary_version);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *pi = (int)i->binary_version;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *pi = f->attribute_shared_max ? f->attribute_shared_max : 49152 - (int)f->entry->shared_bytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *pi = f->attribute_carveout ? f->attribute_carveout - 1 : -1;
        return CUDA_SUCCESS;
    default:
        *pi = 0;
        return (int)a >= 0 && a < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult function_set_attribute(CUfunction_attribute a, int value, struct function *f)
{
    switch (a) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value > 232448) return CUDA_ERROR_INVALID_VALUE;
        f->attribute_shared_max = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
        f->attribute_carveout = value + 1;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult function_parameter(const struct function *f, size_t index, size_t *offset, size_t *size)
{
    struct parameter p[PARAMETERS_MAX];
    const struct parameter *from = f->entry->parameter;
    uint32_t count = f->entry->parameter_count, bytes;
    if (!offset) return CUDA_ERROR_INVALID_VALUE;
    if (!f->entry->has_parameters && f->kernel) {
        count = kernel_parameters(f->kernel, p, &bytes);
        from = p;
    }
    if (index >= count) return CUDA_ERROR_INVALID_VALUE;
    *offset = from[index].offset;
    if (size) *size = from[index].size;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    FUNCTION_OR_RETURN(f, hfunc);
    return function_attribute(pi, attrib, f);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    FUNCTION_OR_RETURN(f, hfunc);
    return function_set_attribute(attrib, value, f);
}

EXPORT CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    FUNCTION_OR_RETURN(f, hfunc);
    (void)f;
    (void)config;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config)
{
    FUNCTION_OR_RETURN(f, hfunc);
    (void)f;
    (void)config;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
    FUNCTION_OR_RETURN(f, hfunc);
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = f->entry->name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
    FUNCTION_OR_RETURN(f, func);
    return function_parameter(f, paramIndex, paramOffset, paramSize);
}

EXPORT CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    FUNCTION_OR_RETURN(f, function);
    (void)f;
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncLoad(CUfunction function)
{
    FUNCTION_OR_RETURN(f, function);
    (void)f;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    FUNCTION_OR_RETURN(f, kernel);
    if (!pFunc) return CUDA_ERROR_INVALID_VALUE;
    *pFunc = (CUfunction)f;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
    FUNCTION_OR_RETURN(f, kernel);
    if (!device_get(dev)) return CUDA_ERROR_INVALID_DEVICE;
    return function_attribute(pi, attrib, f);
}

EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
    FUNCTION_OR_RETURN(f, kernel);
    if (!device_get(dev)) return CUDA_ERROR_INVALID_DEVICE;
    return function_set_attribute(attrib, val, f);
}

EXPORT CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    FUNCTION_OR_RETURN(f, kernel);
    (void)f;
    (void)config;
    return device_get(dev) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
    FUNCTION_OR_RETURN(f, hfunc);
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = f->entry->name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                                     size_t *paramSize)
{
    FUNCTION_OR_RETURN(f, kernel);
    return function_parameter(f, paramIndex, paramOffset, paramSize);
}

/* ---- occupancy: the minimum of what threads, registers, shared memory and block slots allow ---- */

static int device_figure(CUdevice_attribute a)
{
    int v = 0;
    struct context *c = context_current();
    cuDeviceGetAttribute(&v, a, c ? c->device->ordinal : 0);
    return v;
}

static int blocks_that_fit(const struct function *f, int blockSize, size_t dynamic)
{
    int warps = (blockSize + 31) / 32;
    int by_threads = device_figure(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / (warps * 32);
    int by_slots = device_figure(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    uint64_t registers = sim_round_up(f->entry->registers * 32, 256) * (uint64_t)warps;
    int by_registers = (int)(65536 / (registers ? registers : 1));
    uint64_t shared = f->entry->shared_bytes + dynamic;
    if (shared) shared += (uint64_t)device_figure(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    uint64_t all = (uint64_t)device_figure(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    int by_shared = shared ? (int)(all / shared) : by_slots;
    int least = by_threads < by_slots ? by_threads : by_slots;
    if (by_registers < least) least = by_registers;
    return by_shared < least ? by_shared : least;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
                                                                     int blockSize, size_t dynamicSMemSize,
                                                                     unsigned int flags)
{
    FUNCTION_OR_RETURN(f, func);
    if (!numBlocks || blockSize <= 0 || (flags & ~1u)) return CUDA_ERROR_INVALID_VALUE;
    *numBlocks = blockSize > (int)f->entry->threads_max ? 0 : blocks_that_fit(f, blockSize, dynamicSMemSize);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                            size_t dynamicSMemSize)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize,
                                                                0);
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                          size_t dynamicSMemSize, int blockSizeLimit,
                                                          unsigned int flags)
{
    FUNCTION_OR_RETURN(f, func);
    if (!minGridSize || !blockSize || blockSizeLimit < 0 || (flags & ~1u)) return CUDA_ERROR_INVALID_VALUE;
    int most = (int)f->entry->threads_max, best = 0, best_threads = 0, best_blocks = 0;
    if (blockSizeLimit && blockSizeLimit < most) most = blockSizeLimit;
    for (int size = most >= 32 ? most / 32 * 32 : most; size > 0; size -= 32) {
        size_t dynamic = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(size) : dynamicSMemSize;
        int blocks = blocks_that_fit(f, size, dynamic);
        if (blocks * size > best_threads) {
            best_threads = blocks * size;
            best = size;
            best_blocks = blocks;
        }
    }
    *blockSize = best;
    *minGridSize = best_blocks * device_figure(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                                 CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                 size_t dynamicSMemSize, int blockSizeLimit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                     dynamicSMemSize, blockSizeLimit, 0);
}

EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func,
                                                        int numBlocks, int blockSize)
{
    FUNCTION_OR_RETURN(f, func);
    if (!dynamicSmemSize || numBlocks <= 0 || blockSize <= 0) return CUDA_ERROR_INVALID_VALUE;
    size_t each =
        (size_t)device_figure(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) / (size_t)numBlocks;
    size_t taken =
        f->entry->shared_bytes + (size_t)device_figure(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    size_t most = (size_t)device_figure(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    each = each > taken ? each - taken : 0;
    *dynamicSmemSize = each < most ? each : most;
    return CUDA_SUCCESS;
}
