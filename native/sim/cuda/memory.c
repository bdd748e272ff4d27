/*
 * Linear memory: device, managed, pinned and registered host memory, and what is known of an address.
 *
 * An allocation is charged to the card before it exists, at its rounded size (sim_charge_bytes), and refunded
 * after it is gone.
 */
#include "sim/cuda/internal.h"

#include <sys/mman.h>

static uint32_t group_of(const struct device *d)
{
    return d ? (uint32_t)d->ordinal : SIM_DEVICES_MAX;
}

CUresult memory_take(struct context *c, struct device *d, uint64_t bytes, enum memory memory,
                     struct range **out)
{
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > 1ull << 46) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t charge = d ? sim_charge_bytes(bytes) : 0;
    if (d && !sim_charge(&process.sim, d->index, charge, false)) {
        if (!pools_trim_device(d) || !sim_charge(&process.sim, d->index, charge, false))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory_lock();
    struct range *r = NULL;
    if (bytes < SIM_SMALL_BYTES) {
        r = small_take(group_of(d), bytes, memory);
    } else {
        uint64_t room = sim_round_up(bytes, SIM_LARGE_UNIT), base = space_take(room, 0, 0);
        if (base) r = range_add(base, bytes, room, memory);
        if (base && !r) space_give(base, room);
    }
    if (r) {
        r->device = d;
        r->context = c;
        r->charged = charge;
    }
    memory_unlock();
    if (!r) {
        if (d) sim_refund(&process.sim, d->index, charge, false);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = r;
    return CUDA_SUCCESS;
}

void memory_drop(struct range *r)
{
    struct device *d = r->device;
    uint64_t charge = r->charged;
    memory_lock();
    if (!small_give(r, group_of(d))) {
        if (r->file >= 0) {
            mmap((void *)r->base, r->room, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
            ipc_close_file(r);
        }
        memory_blank(r->base, r->room);
        space_give(r->base, r->room);
        range_remove(r);
    }
    memory_unlock();
    if (d && charge) sim_refund(&process.sim, d->index, charge, false);
}

struct of_context {
    struct context *context;
    struct range **found;
    size_t count, room;
};

static void collect(struct range *r, void *argument)
{
    struct of_context *o = argument;
    bool array = object_get(r->owner, KIND_ARRAY) != NULL; /* what else has an owner is dropped by it */
    if (r->context != o->context || (r->owner && !array) || r->pending_free || r->memory == MEMORY_RESERVED ||
        r->memory == MEMORY_MAPPED)
        return;
    if (o->count == o->room) {
        size_t room = o->room ? 2 * o->room : 256;
        struct range **more = realloc(o->found, room * sizeof *more);
        if (!more) return;
        o->found = more;
        o->room = room;
    }
    o->found[o->count++] = r;
}

void memory_drop_context(struct context *c)
{
    struct of_context o = {.context = c};
    pools_trim_device(c->device);
    memory_lock();
    ranges_visit(collect, &o);
    memory_unlock();
    for (size_t i = 0; i < o.count; i++) {
        if (o.found[i]->owner) object_free(o.found[i]->owner);
        if (o.found[i]->pool)
            pool_drop(o.found[i]);
        else
            memory_drop(o.found[i]);
    }
    free(o.found);
}

/* ---- registered host memory: few ranges, sorted by address ---- */

static struct range **registered;
static size_t registered_count;

static size_t registered_place(uint64_t address)
{
    size_t low = 0, high = registered_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (registered[middle]->base + registered[middle]->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct range *range_find_any(uint64_t address)
{
    if (space_holds(address)) return range_find(address);
    size_t i = registered_place(address);
    return i < registered_count && registered[i]->base <= address ? registered[i] : NULL;
}

EXPORT CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    uint64_t base = (uint64_t)p;
    if (!p || bytesize == 0 || base + bytesize < base || space_holds(base)) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    size_t i = registered_place(base);
    if (i < registered_count && registered[i]->base < base + bytesize) {
        memory_unlock();
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    struct range **more = realloc(registered, (registered_count + 1) * sizeof *more);
    struct range *r = more ? range_add(base, bytesize, bytesize, MEMORY_REGISTERED) : NULL;
    if (more) registered = more;
    if (r) {
        memmove(&registered[i + 1], &registered[i], (registered_count - i) * sizeof *registered);
        registered[i] = r;
        registered_count++;
        r->context = c;
        r->flags = Flags;
    }
    memory_unlock();
    return r ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemHostUnregister(void *p)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    memory_lock();
    size_t i = registered_place((uint64_t)p);
    result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (p && i < registered_count && registered[i]->base == (uint64_t)p) {
        range_remove(registered[i]);
        memmove(&registered[i], &registered[i + 1], (registered_count - i - 1) * sizeof *registered);
        registered_count--;
        result = CUDA_SUCCESS;
    }
    memory_unlock();
    return result;
}

/* ---- who may touch what ---- */

static bool may(const struct context *c, const struct range *r)
{
    if (r->pending_free) return false;
    switch (r->memory) {
    case MEMORY_DEVICE:
    case MEMORY_GRAPH:
    case MEMORY_IMPORTED:
        return r->device == c->device || (c->peers >> r->device->ordinal & 1);
    case MEMORY_POOL:
        return r->device == c->device || (r->pool && (r->pool->access >> c->device->ordinal & 1));
    case MEMORY_MAPPED:
        return r->access >> c->device->ordinal & 1;
    case MEMORY_MANAGED:
    case MEMORY_HOST:
    case MEMORY_REGISTERED:
        return true;
    default:
        return false;
    }
}

bool memory_allows(struct context *c, uint64_t address, uint64_t bytes)
{
    bool ok = true;
    if (address + bytes < address) return false;
    memory_lock();
    while (ok && bytes) {
        const struct range *r = range_find_any(address);
        ok = r && may(c, r);
        if (!ok) break;
        uint64_t here = r->base + r->size - address;
        if (here >= bytes) break;
        ok = r->memory == MEMORY_MAPPED; /* only mappings may continue in the next range */
        address += here;
        bytes -= here;
    }
    memory_unlock();
    return ok;
}

bool memory_knows(uint64_t address)
{
    memory_lock();
    const struct range *r = range_find_any(address);
    bool known = r && r->memory != MEMORY_RESERVED;
    memory_unlock();
    return known;
}

bool memory_is_ours(uint64_t address)
{
    return space_holds(address);
}

/* ---- allocation ---- */

static CUresult allocate(CUdeviceptr *out, uint64_t bytes, enum memory memory, bool host, unsigned int flags)
{
    struct context *c;
    struct range *r;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    result = capture_forbids();
    if (result == CUDA_SUCCESS) result = memory_take(c, host ? NULL : c->device, bytes, memory, &r);
    if (result != CUDA_SUCCESS) return result;
    r->flags = flags;
    *out = r->base;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    return allocate(dptr, bytesize, MEMORY_DEVICE, false, 0);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                   unsigned int ElementSizeBytes)
{
    if (!dptr || !pPitch || WidthInBytes == 0 || Height == 0) return CUDA_ERROR_INVALID_VALUE;
    if (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16)
        return CUDA_ERROR_INVALID_VALUE;
    if (WidthInBytes > 1ull << 40 || Height > 1ull << 40) return CUDA_ERROR_INVALID_VALUE;
    uint64_t pitch = sim_round_up(WidthInBytes, 512), bytes;
    if (__builtin_mul_overflow(pitch, Height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = allocate(dptr, bytes, MEMORY_DEVICE, false, 0);
    if (result == CUDA_SUCCESS) *pPitch = pitch;
    return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    unsigned int kind = flags & 7u;
    if (kind != CU_MEM_ATTACH_GLOBAL && kind != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    return allocate(dptr, bytesize, MEMORY_MANAGED, false, flags);
}

EXPORT CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    if (!pp || (Flags & ~7u)) return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr p = 0;
    CUresult result = allocate(&p, bytesize, MEMORY_HOST, true, Flags);
    if (result == CUDA_SUCCESS) *pp = (void *)p;
    return result;
}

EXPORT CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult memory_release(uint64_t base, bool host)
{
    memory_lock();
    struct range *r = range_find(base);
    if (r && r->memory == MEMORY_GRAPH && r->base == base && !host) {
        memory_unlock();
        return graph_memory_free(r) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    bool right = r && r->base == base && !r->owner && !r->pending_free && !r->freeing;
    if (right && host) right = r->memory == MEMORY_HOST;
    if (right && !host)
        right = r->memory == MEMORY_DEVICE || r->memory == MEMORY_MANAGED || r->memory == MEMORY_POOL;
    if (right) r->pending_free = true; /* a second free of the same address loses here */
    memory_unlock();
    if (!right) return CUDA_ERROR_INVALID_VALUE;
    if (r->pool)
        pool_drop(r);
    else
        memory_drop(r);
    return CUDA_SUCCESS;
}

static CUresult release(uint64_t base, bool host)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!base) return CUDA_SUCCESS;
    result = capture_forbids();
    if (result == CUDA_SUCCESS) result = context_synchronize(c);
    return result != CUDA_SUCCESS ? result : memory_release(base, host);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    return release(dptr, false);
}

EXPORT CUresult cuMemFreeHost(void *p)
{
    return release((uint64_t)p, true);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    sim_sweep(&process.sim, 1000000ull);
    device_total(c->device, total);
    const struct device *d = c->device;
    uint64_t used = d->instance >= 0 ? d->shared->mig.gi[d->instance].used_bytes
                                     : __atomic_load_n(&d->shared->used_bytes, __ATOMIC_RELAXED);
    *free = used < *total ? *total - used : 0;
    return CUDA_SUCCESS;
}

/* ---- questions about an address ---- */

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    memory_lock();
    const struct range *r = range_find_any(dptr);
    if (r && r->memory == MEMORY_RESERVED) r = NULL;
    if (r) {
        if (pbase) *pbase = r->base;
        if (psize) *psize = r->size;
    }
    memory_unlock();
    return r ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!pdptr || Flags) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct range *r = range_find_any((uint64_t)p);
    bool ok =
        r && (r->memory == MEMORY_HOST || r->memory == MEMORY_REGISTERED || r->memory == MEMORY_MANAGED);
    memory_unlock();
    if (!ok) return CUDA_ERROR_INVALID_VALUE;
    *pdptr = (CUdeviceptr)p;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!pFlags) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct range *r = range_find_any((uint64_t)p);
    bool ok = r && (r->memory == MEMORY_HOST || r->memory == MEMORY_REGISTERED);
    if (ok) *pFlags = r->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    memory_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location)
{
    struct context *c;
    CUresult result = context_enter(&c);
    (void)advice;
    (void)location;
    if (result != CUDA_SUCCESS) return result;
    memory_lock();
    const struct range *r = range_find_any(devPtr);
    bool ok = count && r && r->memory == MEMORY_MANAGED && devPtr + count <= r->base + r->size;
    memory_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    return cuMemAdvise_v2(devPtr, count, advice, location);
}
