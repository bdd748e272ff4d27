/*
 * Virtual memory management: address reservations, physical allocations, and mappings of one onto the other.
 *
 * Physical memory is in a memory file, so that it can be mapped in several places and shared with other
 * processes: one file for all allocations of the process, divided at the granularity, or a separate file for
 * what may be exported. It is charged when it is created (imported memory is not) and refunded when its handle
 * and all its mappings have been released.
 */
#include "sim/cuda/context/context.h"
#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/memory_pool.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream_work.h"
#include "sim/node/charge.h"
#include "sim/node/state.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULARITY SIM_LARGE_UNIT

struct physical {
    struct object object;
    struct device *device; /* NULL: host memory */
    uint64_t bytes;
    int file;
    uint64_t offset; /* in the shared file */
    bool own_file;
    bool imported;
    uint32_t references; /* handle and mappings */
    uint32_t handles;
    CUmemAllocationProp properties;
};

static int shared_file = -1;
static uint64_t shared_bytes;
static struct extent { /* freed parts of the shared file, by exact size */
    uint64_t offset, bytes;
    struct extent *next;
} *spare;

/* Requires the memory lock. */
static bool file_take(struct physical *p)
{
    if (p->own_file) {
        p->file = memfd_create("simulated device memory", MFD_CLOEXEC);
        return p->file >= 0 && ftruncate(p->file, (off_t)p->bytes) == 0;
    }
    if (shared_file < 0) shared_file = memfd_create("simulated device memory", MFD_CLOEXEC);
    if (shared_file < 0) return false;
    p->file = shared_file;
    for (struct extent **e = &spare; *e; e = &(*e)->next) {
        if ((*e)->bytes != p->bytes) continue;
        struct extent *found = *e;
        *e = found->next;
        p->offset = found->offset;
        free(found);
        return true;
    }
    p->offset = shared_bytes;
    shared_bytes += p->bytes;
    return ftruncate(shared_file, (off_t)shared_bytes) == 0;
}

static void file_drop(struct physical *p)
{
    if (p->own_file) {
        if (p->file >= 0) close(p->file);
        return;
    }
    fallocate(p->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)p->offset, (off_t)p->bytes);
    struct extent *e = malloc(sizeof *e);
    if (!e) return;
    *e = (struct extent){p->offset, p->bytes, spare};
    spare = e;
}

/* Requires the memory lock; return the bytes to be refunded. */
static uint64_t physical_release(struct physical *p)
{
    if (--p->references > 0) return 0;
    uint64_t refund = p->device && !p->imported ? p->bytes : 0;
    file_drop(p);
    object_free(p);
    return refund;
}

static CUresult properties_check(const CUmemAllocationProp *prop, struct device **d)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    *d = NULL;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return unserved("cuMemCreate on the host");
    *d = device_get(prop->location.id);
    return *d ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                              CUmemAllocationGranularity_flags option)
{
    struct device *d;
    OK_OR_RETURN(properties_check(prop, &d));
    if (!granularity ||
        (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

static struct physical *physical_new(struct device *d, uint64_t bytes, const CUmemAllocationProp *prop)
{
    struct physical *p = object_new(KIND_PHYSICAL, sizeof *p);
    if (!p) return NULL;
    p->device = d;
    p->bytes = bytes;
    p->properties = *prop;
    p->references = p->handles = 1;
    p->file = -1;
    p->own_file = prop->requestedHandleTypes != 0;
    return p;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                            const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct device *d;
    OK_OR_RETURN(properties_check(prop, &d));
    if (!handle || flags || size == 0 || size % GRANULARITY || size > 1ull << 46)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_charge(&process.sim, d->index, size, false)) {
        if (!pools_trim_device(d) || !sim_charge(&process.sim, d->index, size, false))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct physical *p = physical_new(d, size, prop);
    memory_lock();
    bool ok = p && file_take(p);
    memory_unlock();
    if (!ok) {
        if (p) object_free(p);
        sim_refund(&process.sim, d->index, size, false);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (CUmemGenericAllocationHandle)p;
    return CUDA_SUCCESS;
}

static struct physical *physical_get(CUmemGenericAllocationHandle handle)
{
    struct physical *p = process.ready ? object_get((void *)handle, KIND_PHYSICAL) : NULL;
    return p && p->handles ? p : NULL;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    memory_lock();
    struct physical *p = physical_get(handle);
    struct device *d = p ? p->device : NULL;
    uint64_t refund = 0;
    if (p) {
        p->handles--;
        refund = physical_release(p);
    }
    memory_unlock();
    if (refund) sim_refund(&process.sim, d->index, refund, false);
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- addresses ---- */

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                    unsigned long long flags)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!ptr || flags || size == 0 || size % GRANULARITY || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    uint64_t base = space_take(size, alignment, addr);
    struct range *r = base ? range_add(base, size, size, MEMORY_RESERVED) : NULL;
    if (base && !r) space_give(base, size);
    memory_unlock();
    if (!r) return CUDA_ERROR_OUT_OF_MEMORY;
    *ptr = base;
    return CUDA_SUCCESS;
}

static bool reservation_has_mappings(const struct range *reservation)
{
    for (uint64_t a = reservation->base; a < reservation->base + reservation->size; a += GRANULARITY) {
        if (range_find(a) != reservation) return true;
    }
    return false;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    memory_lock();
    struct range *r = range_find(ptr);
    bool ok = r && r->memory == MEMORY_RESERVED && r->base == ptr && r->size == size &&
              !reservation_has_mappings(r);
    if (ok) {
        range_remove(r);
        space_give(ptr, size);
    }
    memory_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (flags || size == 0 || size % GRANULARITY || offset % GRANULARITY || ptr % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    struct physical *p = physical_get(handle);
    struct range *home = range_find(ptr);
    bool ok = p && offset <= p->bytes && size <= p->bytes - offset && home &&
              home->memory == MEMORY_RESERVED && ptr + size <= home->base + home->size;
    for (uint64_t a = ptr; ok && a < ptr + size; a += GRANULARITY)
        ok = range_find(a) == home;
    struct range *r = NULL;
    if (ok && mmap((void *)ptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, p->file,
                   (off_t)(p->offset + offset)) != MAP_FAILED) {
        madvise((void *)ptr, size, MADV_DONTFORK);
        r = range_add(ptr, size, size, MEMORY_MAPPED);
    }
    if (r) {
        r->device = p->device;
        r->owner = p;
        r->parent = home;
        r->handle_types = p->properties.requestedHandleTypes;
        p->references++;
    }
    memory_unlock();
    return r ? CUDA_SUCCESS : ok ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    bool ok = true; /* the mappings must fill the range exactly */
    for (uint64_t a = ptr; ok && a < ptr + size;) {
        const struct range *r = range_find(a);
        ok = r && r->memory == MEMORY_MAPPED && r->base == a && a + r->size <= ptr + size;
        if (ok) a += r->size;
    }
    memory_unlock();
    if (!ok) return CUDA_ERROR_INVALID_VALUE;
    struct context *c = context_current();
    if (c) context_synchronize(c);
    for (uint64_t a = ptr; a < ptr + size;) {
        memory_lock();
        struct range *r = range_find(a);
        if (!r || r->memory != MEMORY_MAPPED) {
            memory_unlock();
            return CUDA_ERROR_INVALID_VALUE;
        }
        struct range *home = r->parent;
        struct device *d = r->device;
        uint64_t bytes = r->size, refund = physical_release(r->owner);
        mmap((void *)a, bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        madvise((void *)a, bytes, MADV_DONTFORK);
        range_remove(r);
        range_restore(home, a, bytes);
        memory_unlock();
        if (refund) sim_refund(&process.sim, d->index, refund, false);
        a += bytes;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!desc || !count || !size) return CUDA_ERROR_INVALID_VALUE;
    uint32_t on = 0, off = 0;
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return unserved("cuMemSetAccess for the host");
        if (!device_get(desc[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
        *(desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? &off : &on) |= 1u << desc[i].location.id;
    }
    memory_lock();
    bool ok = true;
    for (uint64_t a = ptr; ok && a < ptr + size;) {
        const struct range *r = range_find(a);
        ok = r && r->memory == MEMORY_MAPPED && r->base == a && a + r->size <= ptr + size;
        if (ok) a += r->size;
    }
    for (uint64_t a = ptr; ok && a < ptr + size;) {
        struct range *r = range_find(a);
        r->access = (r->access | on) & ~off;
        a += r->size;
    }
    memory_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!flags || !location || !device_get(location->id)) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct range *r = range_find(ptr);
    bool ok = r && r->memory == MEMORY_MAPPED;
    if (ok)
        *flags = r->access >> location->id & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                               : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    memory_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct range *r = range_find((uint64_t)addr);
    struct physical *p = r && r->memory == MEMORY_MAPPED ? r->owner : NULL;
    if (p) {
        p->references++;
        p->handles++;
    }
    memory_unlock();
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    *handle = (CUmemGenericAllocationHandle)p;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                       CUmemGenericAllocationHandle handle)
{
    const struct physical *p = physical_get(handle);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!p || !prop) return CUDA_ERROR_INVALID_VALUE;
    *prop = p->properties;
    return CUDA_SUCCESS;
}

/* ---- sharing ---- */

EXPORT CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType handleType, unsigned long long flags)
{
    const struct physical *p = physical_get(handle);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!shareableHandle || !p || flags) return CUDA_ERROR_INVALID_VALUE;
    if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    if (!p->own_file) return CUDA_ERROR_INVALID_VALUE;
    int copy = fcntl(p->file, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(shareableHandle, &copy, sizeof copy);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                               CUmemAllocationHandleType shHandleType)
{
    struct stat st;
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    int fd = (int)(intptr_t)osHandle;
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size <= 0 ||
        st.st_size % (off_t)GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    struct context *c = context_current();
    if (c) prop.location.id = c->device->ordinal;
    struct physical *p = physical_new(device_get(prop.location.id), (uint64_t)st.st_size, &prop);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    p->imported = true;
    p->file = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (p->file < 0) {
        object_free(p);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *handle = (CUmemGenericAllocationHandle)p;
    return CUDA_SUCCESS;
}
