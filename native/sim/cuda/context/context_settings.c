/*
 * Driver calls that read and set properties of a context: flags, limits, cache and bank configuration,
 * priorities, peers.
 */
#include "sim/cuda/context/context.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"

EXPORT CUresult cuCtxGetFlags(unsigned int *flags)
{
    CONTEXT_OR_RETURN(c);
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = c->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetFlags(unsigned int flags)
{
    CONTEXT_OR_RETURN(c);
    if (!context_flags_are_valid(flags)) return CUDA_ERROR_INVALID_VALUE;
    c->flags = flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
    CONTEXT_OR_RETURN(c);
    if (!pvalue) return CUDA_ERROR_INVALID_VALUE;
    if ((int)limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *pvalue = c->limit[limit];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    CONTEXT_OR_RETURN(c);
    if ((int)limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    c->limit[limit] = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    CONTEXT_OR_RETURN(c);
    if (!pconfig) return CUDA_ERROR_INVALID_VALUE;
    *pconfig = c->cache_config;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result == CUDA_SUCCESS) c->cache_config = config;
    return result;
}

EXPORT CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
    CONTEXT_OR_RETURN(c);
    if (!pConfig) return CUDA_ERROR_INVALID_VALUE;
    *pConfig = c->shared_config ? c->shared_config : CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result == CUDA_SUCCESS) c->shared_config = config;
    return result;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    CONTEXT_OR_RETURN(c);
    if (leastPriority) *leastPriority = 0;
    if (greatestPriority) *greatestPriority = -5;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetExecAffinity(CUexecAffinityParam *pExecAffinity, CUexecAffinityType type)
{
    CONTEXT_OR_RETURN(c);
    if (!pExecAffinity) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    pExecAffinity->type = type;
    pExecAffinity->param.smCount.val = c->device->profile->sm_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxResetPersistingL2Cache(void)
{
    struct context *c;
    return context_enter(&c);
}

/* The header that declares them comes with another package. */
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);

/* No profiler is supported. */
EXPORT CUresult cuProfilerStart(void)
{
    struct context *c;
    return context_enter(&c);
}

EXPORT CUresult cuProfilerStop(void)
{
    struct context *c;
    return context_enter(&c);
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    struct context *c, *peer = object_get(peerContext, KIND_CONTEXT);
    OK_OR_RETURN(context_enter(&c));
    if (Flags) return CUDA_ERROR_INVALID_VALUE;
    if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
    int possible = 0;
    cuDeviceCanAccessPeer(&possible, c->device->ordinal, peer->device->ordinal);
    if (!possible) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    uint64_t bit = 1ull << peer->device->ordinal;
    if (__atomic_fetch_or(&c->peers, bit, __ATOMIC_RELAXED) & bit)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    struct context *c, *peer = object_get(peerContext, KIND_CONTEXT);
    OK_OR_RETURN(context_enter(&c));
    if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t bit = 1ull << peer->device->ordinal;
    if (!(__atomic_fetch_and(&c->peers, ~bit, __ATOMIC_RELAXED) & bit))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    return CUDA_SUCCESS;
}
