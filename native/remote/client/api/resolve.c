/* Look-up of functions by programs, and the results of functions that are not forwarded. */
#include "remote/client/api/generated.h"

#include "api/cuda_resolve.h"
#include "remote/client/device/device_snapshot.h"

/*
 * The lower of the two versions: a function that is younger than the driver behind the worker is absent, as
 * with that driver itself.
 */
static int limit_version(int version)
{
    int driver = cb_session_ready() ? cb_snapshot.driver_version : version;
    return driver < version ? driver : version;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *symbolStatus)
{
    const cuuint64_t known =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (symbolStatus) *symbolStatus = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (!symbol || !pfn) return CUDA_ERROR_INVALID_VALUE;
    *pfn = NULL;
    if ((flags & ~known) || flags == known || cudaVersion < 0) return CUDA_ERROR_INVALID_VALUE;
    CUdriverProcAddressQueryResult status;
    int f = cb_api_resolve(symbol, limit_version(cudaVersion),
                           flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status);
    if (symbolStatus) *symbolStatus = status;
    if (f < 0) return CUDA_ERROR_NOT_FOUND;
    *pfn = cb_client_address[f];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}

EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    const char *text = getenv("CUDA_MODULE_LOADING");
    *mode = text && strcmp(text, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}
