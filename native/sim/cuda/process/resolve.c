/* Look-up of functions by programs: cuGetProcAddress in both forms, over the generated table. */
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/process.h"

#include "api/cuda_resolve.h"
#include "api/sim_stubs.h"

CUresult cb_sim_unserved(int function)
{
    if (!process.ready) return process.forked ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NOT_SUPPORTED;
    return unserved(function >= 0 && function < CB_CUDA_COUNT ? cb_cuda_names[function] : "?");
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *symbolStatus)
{
    if (symbolStatus) *symbolStatus = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (!symbol || !pfn) return CUDA_ERROR_INVALID_VALUE;
    *pfn = NULL;
    const cuuint64_t known =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if ((flags & ~known) || flags == known || cudaVersion < 0) return CUDA_ERROR_INVALID_VALUE;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int f =
        cb_api_resolve(symbol, cudaVersion, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status);
    if (symbolStatus) *symbolStatus = status;
    if (f >= 0) {
        *pfn = cb_sim_cuda_address[f];
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}
