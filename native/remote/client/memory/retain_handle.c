/* Hook that returns the physical memory handle of a mapped address. */
#include "remote/client/connection/call.h"

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    struct cb_call call;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_call_begin(&call, CB_OP_RETAIN, CB_ANYWHERE));
    cb_put_word(&call, (uintptr_t)addr);
    CB_OK(cb_call_ask(&call));
    *handle = cb_take_word(&call);
    return CUDA_SUCCESS;
}
