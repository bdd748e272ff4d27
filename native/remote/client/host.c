/* Host memory for a program: its own pages. A remote device cannot reach them; copies read and write them here. */
#include "remote/client/range.h"
#include "remote/client/session.h"

#include <sys/mman.h>

EXPORT CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int flags)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pp || !bytesize || flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
    void *p = mmap(NULL, bytesize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!cb_range_add((uintptr_t)p, bytesize, CB_MEMORY_HOST, flags)) {
        munmap(p, bytesize);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pp = p;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return cuMemHostAlloc(pp, bytesize, 0);
}

EXPORT CUresult cuMemFreeHost(void *p)
{
    struct cb_range r;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!cb_range_drop((uintptr_t)p, CB_MEMORY_HOST, &r)) return CUDA_ERROR_INVALID_VALUE;
    munmap(p, r.bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int flags)
{
    struct cb_range r;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!p || !bytesize) return CUDA_ERROR_INVALID_VALUE;
    if (flags & ~15u) return CUDA_ERROR_INVALID_VALUE;
    if (cb_range_of((uintptr_t)p, &r)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    return cb_range_add((uintptr_t)p, bytesize, CB_MEMORY_REGISTERED, flags) ? CUDA_SUCCESS
                                                                             : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemHostUnregister(void *p)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    bool known = cb_range_drop((uintptr_t)p, CB_MEMORY_REGISTERED, NULL);
    return known ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

EXPORT CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    struct cb_range r;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pFlags || !cb_range_of((uintptr_t)p, &r) || r.memory == CB_MEMORY_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    *pFlags = r.flags;
    return CUDA_SUCCESS;
}
