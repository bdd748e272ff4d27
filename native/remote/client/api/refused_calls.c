#include "remote/client/api/refused_calls.h"

#include "api/cuda_resolve.h"
#include "remote/client/connection/call.h"

#include <stdio.h>

CUresult cb_call_refused(int function)
{
    static bool told[CB_CUDA_COUNT];
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!__atomic_exchange_n(&told[function], true, __ATOMIC_RELAXED) && getenv("CALABASH_DEBUG"))
        fprintf(stderr, "calabash: %s is not supported on a remote GPU\n", cb_cuda_names[function]);
    return CUDA_ERROR_NOT_SUPPORTED;
}
