#include "remote/client/memory/managed_memory.h"

#include "remote/client/connection/call.h"
#include "remote/client/memory/mirrored_memory.h"

#include <sys/mman.h>

#define PAGE 4096u

/* Small allocations share pages: pages at their edges are reference-counted. */
static struct edge {
    uint64_t page;
    size_t users;
} *edges;
static size_t edge_count, edge_capacity;
static pthread_mutex_t edges_lock = PTHREAD_MUTEX_INITIALIZER;

static bool pages_take(uint64_t address, uint64_t bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *p = mmap((void *)address, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p != MAP_FAILED && p != (void *)address) munmap(p, bytes);
    return p == (void *)address;
}

static struct edge *edge_of(uint64_t page)
{
    for (size_t i = 0; i < edge_count; i++) {
        if (edges[i].page == page) return &edges[i];
    }
    return NULL;
}

static bool edge_take(uint64_t page)
{
    struct edge *e = edge_of(page);
    if (!e) {
        if (edge_count == edge_capacity) {
            struct edge *more = realloc(edges, (edge_capacity + 64) * sizeof *more);
            if (!more) return false;
            edges = more;
            edge_capacity += 64;
        }
        if (!pages_take(page, PAGE)) return false;
        e = &edges[edge_count++];
        *e = (struct edge){page, 0};
    }
    e->users++;
    return true;
}

static void edge_give(uint64_t page)
{
    struct edge *e = edge_of(page);
    if (!e || --e->users) return;
    munmap((void *)page, PAGE);
    *e = edges[--edge_count];
}

static bool managed_map(uint64_t address, uint64_t bytes)
{
    uint64_t first = address & ~(uint64_t)(PAGE - 1), last = (address + bytes - 1) & ~(uint64_t)(PAGE - 1);
    if (!edge_take(first)) return false;
    bool ok = last == first || edge_take(last);
    if (ok && last > first + PAGE && !pages_take(first + PAGE, last - first - PAGE)) {
        edge_give(last);
        ok = false;
    }
    if (!ok) edge_give(first);
    return ok;
}

static void managed_unmap(uint64_t address, uint64_t bytes)
{
    uint64_t first = address & ~(uint64_t)(PAGE - 1), last = (address + bytes - 1) & ~(uint64_t)(PAGE - 1);
    if (last > first + PAGE) munmap((void *)(first + PAGE), last - first - PAGE);
    if (last > first) edge_give(last);
    edge_give(first);
}

void cb_managed_end(const struct cb_range *r)
{
    cb_mirror_drop(r->address);
    pthread_mutex_lock(&edges_lock);
    managed_unmap(r->address, r->bytes);
    pthread_mutex_unlock(&edges_lock);
}

static CUresult managed_allocate(uint64_t *address, size_t bytes, unsigned int flags)
{
    struct cb_call call;
    CB_OK(cb_call_begin(&call, CB_OP_MANAGED, CB_IN_CONTEXT));
    cb_put_word(&call, bytes);
    cb_put_word(&call, flags);
    CB_OK(cb_call_ask(&call));
    *address = cb_take_word(&call);
    pthread_mutex_lock(&edges_lock);
    bool ok = managed_map(*address, bytes);
    pthread_mutex_unlock(&edges_lock);
    if (ok && cb_mirror_add(*address, bytes, true)) return CUDA_SUCCESS;
    struct cb_range r = {.address = *address, .bytes = bytes};
    if (ok)
        cb_managed_end(&r);
    else
        cb_mirror_drop(*address);
    return CUDA_ERROR_OUT_OF_MEMORY; /* the address is in use in this process */
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    uint64_t address = 0;
    unsigned int kind = flags & 7u;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!dptr || !bytesize) return CUDA_ERROR_INVALID_VALUE;
    if (kind != CU_MEM_ATTACH_GLOBAL && kind != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = managed_allocate(&address, bytesize, flags);
    if (result == CUDA_SUCCESS && !cb_range_add(address, bytesize, CB_MEMORY_MANAGED, flags)) {
        struct cb_range r = {.address = address, .bytes = bytesize};
        cb_managed_end(&r);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        *dptr = address;
    else if (address)
        cuMemFree_v2(address);
    return result;
}

/* Location and usage hints concern the worker only and have no effect here: check the range and succeed. */
static CUresult managed_check(CUdeviceptr p, size_t bytes)
{
    struct cb_range r;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    bool ok =
        bytes && cb_range_of(p, &r) && r.memory == CB_MEMORY_MANAGED && bytes <= r.bytes - (p - r.address);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count_, CUmem_advise advice, CUmemLocation location)
{
    (void)advice;
    (void)location;
    return managed_check(devPtr, count_);
}

EXPORT CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count_, CUmem_advise advice, CUdevice device)
{
    (void)advice;
    (void)device;
    return managed_check(devPtr, count_);
}

EXPORT CUresult cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute,
                                       CUdeviceptr devPtr, size_t count_)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!data || dataSize < 4) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(managed_check(devPtr, count_));
    int none = attribute == CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY ? 0 : CU_DEVICE_INVALID;
    for (size_t i = 0; i + 4 <= dataSize; i += 4)
        memcpy((char *)data + i, &none, sizeof none);
    return CUDA_SUCCESS;
}
