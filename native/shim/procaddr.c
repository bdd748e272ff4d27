/*
 * Hook of cuGetProcAddress: the driver answers first, then its answer is replaced by the hook of that very
 * function.
 *
 * So version, per-thread-stream flags and symbolStatus are the driver's own decisions, and the hook has the ABI
 * of the function that the driver returned. If a driver returns an address that is not one of its exports (a
 * private entry to a function that is hooked), the name decides, by the rule that the driver itself follows
 * (native/api).
 */
#include "shim/base.h"

#include "shim/hook.h"
#include "shim/real.h"

#include "api/cuda_resolve.h"

#include <string.h>

#define PER_THREAD_STREAMS 2u /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

static const struct cb_hook *hook_by_name(const char *symbol, int version, cuuint64_t flags)
{
    int function = cb_api_resolve(symbol, version, (flags & PER_THREAD_STREAMS) != 0, NULL);
    const struct cb_hook *hook = function >= 0 ? cb_hook_named(cb_cuda_names[function]) : NULL;
    return hook != NULL && cb_hook_served(hook) ? hook : NULL;
}

static void replace_by_hook(const char *symbol, void **function, int version, cuuint64_t flags)
{
    if (symbol == NULL || function == NULL || *function == NULL || strncmp(symbol, "cu", 2) != 0) return;
    const struct cb_hook *hook = cb_hook_of_real(*function, symbol);
    if (hook == NULL) hook = hook_by_name(symbol, version, flags);
    if (hook != NULL) *function = hook->hook;
}

CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    if (!cb_load_cuda()) return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = CB_REAL(cuGetProcAddress)(symbol, pfn, cudaVersion, flags);
    if (result == CUDA_SUCCESS) replace_by_hook(symbol, pfn, cudaVersion, flags);
    return result;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *symbolStatus)
{
    if (!cb_load_cuda()) return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = CB_REAL(cuGetProcAddress_v2)(symbol, pfn, cudaVersion, flags, symbolStatus);
    if (result == CUDA_SUCCESS) replace_by_hook(symbol, pfn, cudaVersion, flags);
    return result;
}
