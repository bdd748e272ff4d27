/*
 * Pinned memory: pages of this process, in an address range that the worker can map as well, so that a device
 * may be given their addresses. A program's own pages cannot be mapped there: they may be of any kind, at any
 * address.
 */
#include "remote/client/connection/call.h"
#include "remote/client/memory/memory_ranges.h"
#include "remote/client/memory/mirrored_memory.h"
#include "remote/client/memory/pinned_mapping.h"

#include <sys/mman.h>

#define PAGE          4096u
#define ARENA_SMALLER (64ull << 30)

static struct {
    pthread_mutex_t lock;
    uint64_t bytes; /* 0: no such range; pinned memory is then at any address */
    bool tried;
    struct piece {
        uint64_t address, bytes;
    } *piece; /* pieces in use, by address */
    size_t count, capacity;
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void arena_reserve(void)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    arena.tried = true;
    for (uint64_t bytes = CB_ARENA_BYTES; bytes >= ARENA_SMALLER && !arena.bytes; bytes /= 4) {
        void *p = mmap((void *)CB_ARENA_BASE, bytes, PROT_NONE, flags, -1, 0);
        if (p == (void *)CB_ARENA_BASE)
            arena.bytes = bytes;
        else if (p != MAP_FAILED)
            munmap(p, bytes);
    }
}

/* First fit. Requires the lock. */
static uint64_t arena_take(uint64_t bytes)
{
    if (!arena.tried) arena_reserve();
    if (arena.count == arena.capacity) {
        struct piece *more = realloc(arena.piece, (arena.capacity + 256) * sizeof *more);
        if (!more) return 0;
        arena.piece = more;
        arena.capacity += 256;
    }
    uint64_t at = CB_ARENA_BASE;
    size_t i = 0;
    while (i < arena.count && arena.piece[i].address - at < bytes) {
        at = arena.piece[i].address + arena.piece[i].bytes;
        i++;
    }
    if (bytes > arena.bytes || at - CB_ARENA_BASE > arena.bytes - bytes) return 0;
    if (mprotect((void *)at, bytes, PROT_READ | PROT_WRITE)) return 0;
    memmove(&arena.piece[i + 1], &arena.piece[i], (arena.count - i) * sizeof *arena.piece);
    arena.piece[i] = (struct piece){at, bytes};
    arena.count++;
    return at;
}

static void *pinned_pages_take(uint64_t bytes)
{
    pthread_mutex_lock(&arena.lock);
    uint64_t at = arena_take(bytes);
    pthread_mutex_unlock(&arena.lock);
    if (!at) return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cb_arena_used = true;
    return (void *)at;
}

static void pinned_pages_give(void *p, uint64_t bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    pthread_mutex_lock(&arena.lock);
    size_t i = 0;
    while (i < arena.count && arena.piece[i].address != (uint64_t)p)
        i++;
    if (i < arena.count) {
        mmap(p, bytes, PROT_NONE, flags, -1, 0);
        memmove(&arena.piece[i], &arena.piece[i + 1], (arena.count - i - 1) * sizeof *arena.piece);
        arena.count--;
    } else {
        munmap(p, bytes);
    }
    pthread_mutex_unlock(&arena.lock);
}

static uint64_t round_to_pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

EXPORT CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    CUcontext context = NULL;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!pp || !bytesize || Flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
    if (bytesize > CB_ARENA_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
    void *p = pinned_pages_take(round_to_pages(bytesize));
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (cb_range_add((uintptr_t)p, bytesize, CB_MEMORY_HOST, Flags)) {
        result = Flags & CU_MEMHOSTALLOC_DEVICEMAP ? cb_pinned_map_for((uintptr_t)p) : CUDA_SUCCESS;
        if (result != CUDA_SUCCESS) cb_range_drop((uintptr_t)p, NULL);
    }
    if (result == CUDA_SUCCESS)
        *pp = p;
    else
        pinned_pages_give(p, round_to_pages(bytesize));
    return result;
}

EXPORT CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return cuMemHostAlloc(pp, bytesize, 0);
}

EXPORT CUresult cuMemFreeHost(void *p)
{
    struct cb_range r;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!p) return CUDA_SUCCESS;
    if (!cb_range_of((uintptr_t)p, &r) || r.memory != CB_MEMORY_HOST || r.address != (uintptr_t)p)
        return CUDA_ERROR_INVALID_VALUE;
    if (r.mirrored) { /* devices may be using it */
        CB_OK(cuCtxSynchronize());
        cb_mirror_drop(r.address);
    }
    if (!cb_range_drop((uintptr_t)p, &r)) return CUDA_ERROR_INVALID_VALUE;
    pinned_pages_give(p, round_to_pages(r.bytes));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    struct cb_range r;
    uint64_t base = (uint64_t)p;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!p || !bytesize || base + bytesize < base || Flags & ~15u) return CUDA_ERROR_INVALID_VALUE;
    if (Flags & CU_MEMHOSTREGISTER_DEVICEMAP)
        return CUDA_ERROR_NOT_SUPPORTED; /* see the comment at the top */
    if (cb_range_within(base, bytesize, &r)) {
        if (cb_memory_is_host(r.memory)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool ok = cb_range_add(base, bytesize, CB_MEMORY_REGISTERED, Flags);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemHostUnregister(void *p)
{
    struct cb_range r;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!p || !cb_range_of((uintptr_t)p, &r) || r.memory != CB_MEMORY_REGISTERED ||
        r.address != (uintptr_t)p || !cb_range_drop((uintptr_t)p, NULL))
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    struct cb_range r;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pFlags || !cb_range_of((uintptr_t)p, &r) || !cb_memory_is_host(r.memory))
        return CUDA_ERROR_INVALID_VALUE;
    /* A device may be given any pinned memory, but not the program's own pages. */
    *pFlags = r.flags | (cb_in_arena(r.address, r.bytes) ? CU_MEMHOSTALLOC_DEVICEMAP : 0u);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    struct cb_range r;
    uint64_t address = (uint64_t)p;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pdptr || Flags || !cb_range_of(address, &r)) return CUDA_ERROR_INVALID_VALUE;
    if (r.memory != CB_MEMORY_HOST && r.memory != CB_MEMORY_MANAGED) return CUDA_ERROR_INVALID_VALUE;
    if (r.memory == CB_MEMORY_HOST && !cb_in_arena(r.address, r.bytes)) return CUDA_ERROR_NOT_SUPPORTED;
    CB_OK(cb_pinned_map_for(address));
    *pdptr = address;
    return CUDA_SUCCESS;
}
