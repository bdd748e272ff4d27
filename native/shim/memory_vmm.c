/*
 * Virtual memory management: physical memory by handle, mapped where the program likes.
 *
 * A cuMemCreate is charged to the device of its properties, whatever context is current, and lives until its
 * references (the handle, retained handles) and its mappings are all gone. Imported handles are charged
 * nothing: the exporter in this container has paid, or another container has. Host locations are no device
 * memory. Each block holds its counts under one lock: these calls map pages in the driver and are no hot
 * path.
 */
#include "shim/base.h"

#include "shim/charge.h"
#include "shim/device.h"
#include "shim/real.h"
#include "shim/spin.h"
#include "shim/start.h"

#include <stdlib.h>

struct block {
    struct block *next;
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    int device;
    unsigned references;
    unsigned mappings;
    unsigned pins; /* calls under way that will look at it again */
};

struct mapping {
    struct mapping *next;
    CUdeviceptr address;
    size_t size;
    struct block *block;
};

#define BUCKETS 1024u
static struct block *blocks[BUCKETS];
static struct mapping *mappings[BUCKETS];
static cb_spin lock;

static unsigned bucket(uint64_t key)
{
    return (unsigned)((key * 0x9E3779B97F4A7C15ull) >> 54);
}

static struct block *find_block(CUmemGenericAllocationHandle handle)
{
    for (struct block *block = blocks[bucket(handle)]; block != NULL; block = block->next)
        if (block->handle == handle && block->references > 0) return block;
    return NULL;
}

/* Under the lock: unlinks the block when nothing holds it; the caller uncharges and frees what is returned.
 */
static struct block *drop_if_unused(struct block *block)
{
    if (block->references > 0 || block->mappings > 0 || block->pins > 0) return NULL;
    for (struct block **link = &blocks[bucket(block->handle)]; *link != NULL; link = &(*link)->next) {
        if (*link == block) {
            *link = block->next;
            return block;
        }
    }
    return NULL;
}

static void forget(struct block *block)
{
    if (block == NULL) return;
    cb_uncharge(block->device, block->bytes);
    free(block);
}

static void add_block(CUmemGenericAllocationHandle handle, int device, uint64_t bytes)
{
    struct block *block = malloc(sizeof(*block));
    if (block == NULL) return; /* stays charged until the process ends */
    *block = (struct block){.handle = handle, .bytes = bytes, .device = device, .references = 1};
    cb_lock(&lock);
    block->next = blocks[bucket(handle)];
    blocks[bucket(handle)] = block;
    cb_unlock(&lock);
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                             const CUmemAllocationProp *prop, unsigned long long flags)
{
    CB_ENTER();
    int device = prop != NULL && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE
                     ? cb_device_charged(cb_device_of(prop->location.id))
                     : -1;
    uint64_t bytes = cb_cost(size);
    if (!cb_reserve(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    CB_CALL_DRIVER(result, CB_REAL(cuMemCreate)(handle, size, prop, flags));
    if (result != CUDA_SUCCESS) {
        cb_cancel(device, bytes);
        return result;
    }
    if (device >= 0) add_block(*handle, device, bytes);
    cb_commit(device, bytes);
    return result;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CB_ENTER();
    /* Counted down before the driver releases: afterwards the handle may already mean another block. */
    cb_lock(&lock);
    struct block *block = find_block(handle);
    if (block != NULL) {
        block->references--;
        block->pins++;
    }
    cb_unlock(&lock);
    CUresult result = CB_REAL(cuMemRelease)(handle);
    if (block == NULL) return result;
    cb_lock(&lock);
    block->pins--;
    if (result != CUDA_SUCCESS) block->references++;
    block = drop_if_unused(block);
    cb_unlock(&lock);
    forget(block);
    return result;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuMemRetainAllocationHandle)(handle, addr);
    if (result != CUDA_SUCCESS) return result;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)addr;
    cb_lock(&lock);
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct mapping *mapping = mappings[i]; mapping != NULL; mapping = mapping->next) {
            if (address < mapping->address || address - mapping->address >= mapping->size ||
                mapping->block == NULL)
                continue;
            /* A released block lives on in its mapping: found under the handle that means it now. */
            struct block *block = mapping->block;
            if (block->handle == *handle) block->references++;
            i = BUCKETS - 1;
            break;
        }
    }
    cb_unlock(&lock);
    return result;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                                CUmemAllocationHandleType shHandleType)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuMemImportFromShareableHandle)(handle, osHandle, shHandleType);
    if (result != CUDA_SUCCESS) return result;
    /* Importing one's own export may answer with the same handle, which then holds one more reference. */
    cb_lock(&lock);
    struct block *block = find_block(*handle);
    if (block != NULL) block->references++;
    cb_unlock(&lock);
    return result;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuMemMap)(ptr, size, offset, handle, flags);
    if (result != CUDA_SUCCESS) return result;
    struct mapping *mapping = malloc(sizeof(*mapping));
    if (mapping == NULL) return result;
    cb_lock(&lock);
    struct block *block = find_block(handle);
    *mapping = (struct mapping){.address = ptr, .size = size, .block = block};
    if (block != NULL) block->mappings++;
    mapping->next = mappings[bucket(ptr)];
    mappings[bucket(ptr)] = mapping;
    cb_unlock(&lock);
    return result;
}

/* Under the lock: the mapping that starts at `address`, taken out of the table. */
static struct mapping *take_mapping(CUdeviceptr address)
{
    for (struct mapping **link = &mappings[bucket(address)]; *link != NULL; link = &(*link)->next) {
        struct mapping *mapping = *link;
        if (mapping->address == address) {
            *link = mapping->next;
            return mapping;
        }
    }
    return NULL;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CB_ENTER();
    /* One call may cover several mappings that lie side by side; they leave the table before the driver lets
     * another thread map there again. */
    struct mapping *taken = NULL, *mapping;
    CUdeviceptr end = ptr + size;
    cb_lock(&lock);
    for (CUdeviceptr at = ptr; at < end && (mapping = take_mapping(at)) != NULL; at += mapping->size) {
        mapping->next = taken;
        taken = mapping;
    }
    cb_unlock(&lock);
    CUresult result = CB_REAL(cuMemUnmap)(ptr, size);
    while (taken != NULL) {
        struct block *unused = NULL;
        mapping = taken;
        taken = mapping->next;
        cb_lock(&lock);
        if (result != CUDA_SUCCESS) {
            mapping->next = mappings[bucket(mapping->address)];
            mappings[bucket(mapping->address)] = mapping;
            mapping = NULL;
        } else if (mapping->block != NULL) {
            mapping->block->mappings--;
            unused = drop_if_unused(mapping->block);
        }
        cb_unlock(&lock);
        forget(unused);
        free(mapping);
    }
    return result;
}

static void forked(void)
{
    for (unsigned i = 0; i < BUCKETS; i++) {
        blocks[i] = NULL;
        mappings[i] = NULL;
    }
    lock.held = 0;
}
CB_AT_FORK(forked);
