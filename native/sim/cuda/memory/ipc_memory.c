/*
 * Sharing of device memory with another process: a handle names the owner's memory file, which the other
 * process opens through /proc.
 *
 * An allocation uses private pages until its first handle is requested; then its blocks move to a memory file
 * that is mapped in their place. The other process maps the same file; it is not charged, because the memory is
 * the owner's.
 */
#include "sim/cuda/context/context.h"
#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream_work.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x43504953u

struct handle { /* contents of the 64 bytes of a CUipcMemHandle */
    uint32_t magic;
    uint32_t file;
    uint64_t pid, inode;
    uint64_t offset, size, capacity;
    uint32_t device; /* index in the node file */
};

_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "fits the public handle");

/* Requires the memory lock, with no work under way. */
static bool range_move_to_file(struct range *r)
{
    int fd = memfd_create("simulated device memory", MFD_CLOEXEC);
    if (fd < 0) return false;
    bool ok = ftruncate(fd, (off_t)r->capacity) == 0;
    for (uint64_t at = 0; ok && at < r->size;) {
        ssize_t n = pwrite(fd, (const char *)r->base + at, r->size - at, (off_t)at);
        ok = n > 0;
        at += ok ? (uint64_t)n : 0;
    }
    ok = ok && mmap((void *)r->base, r->capacity, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) != MAP_FAILED;
    if (!ok) {
        close(fd);
        return false;
    }
    madvise((void *)r->base, r->capacity, MADV_DONTFORK);
    r->file = fd;
    return true;
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    struct context *c;
    struct stat st;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!pHandle) return CUDA_ERROR_INVALID_VALUE;
    context_synchronize(c);
    memory_lock();
    struct range *r = range_find(dptr);
    result = CUDA_ERROR_INVALID_VALUE;
    if (r && r->memory == MEMORY_DEVICE && !r->owner) {
        if (r->size < SIM_SMALL_BYTES)
            /* it shares its block with other ranges; the call is recorded as unsupported below */
            result = CUDA_ERROR_NOT_SUPPORTED;
        else if ((r->file >= 0 || range_move_to_file(r)) && fstat(r->file, &st) == 0) {
            struct handle h = {MAGIC, (uint32_t)r->file, (uint64_t)getpid(), st.st_ino,
                               0,     r->size,           r->capacity,        r->device->index};
            memset(pHandle, 0, sizeof *pHandle);
            memcpy(pHandle, &h, sizeof h);
            result = CUDA_SUCCESS;
        } else
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory_unlock();
    return result == CUDA_ERROR_NOT_SUPPORTED ? unserved("cuIpcGetMemHandle below 1 MiB") : result;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    struct context *c;
    struct handle h;
    struct stat st;
    char path[64];
    OK_OR_RETURN(context_enter(&c));
    memcpy(&h, &handle, sizeof h);
    if (!pdptr || (Flags & ~1u) || h.magic != MAGIC || h.capacity == 0 || h.capacity % SIM_LARGE_UNIT ||
        h.size > h.capacity)
        return CUDA_ERROR_INVALID_VALUE;
    if (h.device != c->device->index || h.pid == (uint64_t)getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    snprintf(path, sizeof path, "/proc/%llu/fd/%u", (unsigned long long)h.pid, h.file);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_MAP_FAILED;
    struct range *r = NULL;
    memory_lock();
    if (fstat(fd, &st) == 0 && st.st_ino == h.inode && (uint64_t)st.st_size >= h.capacity) {
        uint64_t base = space_take(h.capacity, 0, 0);
        if (base && mmap((void *)base, h.capacity, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) != MAP_FAILED)
            r = range_add(base, h.size, h.capacity, MEMORY_IMPORTED);
        if (base && !r) space_give(base, h.capacity);
    }
    if (r) {
        madvise((void *)r->base, r->capacity, MADV_DONTFORK);
        r->device = c->device;
        r->context = context_home(c);
        r->file = fd;
        *pdptr = r->base;
    } else {
        close(fd);
    }
    memory_unlock();
    return r ? CUDA_SUCCESS : CUDA_ERROR_MAP_FAILED;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    CONTEXT_OR_RETURN(c);
    context_synchronize(c);
    memory_lock();
    struct range *r = range_find(dptr);
    bool ok = r && r->memory == MEMORY_IMPORTED && r->base == dptr && !r->pending_free;
    if (ok) r->pending_free = true;
    memory_unlock();
    if (!ok) return CUDA_ERROR_INVALID_VALUE;
    memory_drop(r);
    return CUDA_SUCCESS;
}
