/*
 * Hooks of virtual memory management: physical memory by handle, mapped where the program likes.
 *
 * A cuMemCreate is charged to the device of its properties, whatever context is current, and lives until its
 * references (the handle, retained handles) and its mappings have all been released. Imported handles are
 * charged nothing: the exporter has paid, in this container or another. Host locations are not device memory.
 * Each block keeps its counts under one lock: these calls map pages in the driver and are not a hot path.
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
    unsigned pins; /* calls under way that still use the block */
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
static cb_spin blocks_lock;

static unsigned bucket_index(uint64_t key)
{
    return (unsigned)((key * 0x9E3779B97F4A7C15ull) >> 54);
}

static struct block *block_find(CUmemGenericAllocationHandle handle)
{
    for (struct block *block = blocks[bucket_index(handle)]; block != NULL; block = block->next)
        if (block->handle == handle && block->references > 0) return block;
    return NULL;
}

/* Requires the lock. Unlink the block if nothing holds it; the caller uncharges and frees what is returned. */
static struct block *block_unlink_if_unused(struct block *block)
{
    if (block->references > 0 || block->mappings > 0 || block->pins > 0) return NULL;
    for (struct block **link = &blocks[bucket_index(block->handle)]; *link != NULL; link = &(*link)->next) {
        if (*link == block) {
            *link = block->next;
            return block;
        }
    }
    return NULL;
}

static void block_free(struct block *block)
{
    if (block == NULL) return;
    cb_uncharge(block->device, block->bytes);
    free(block);
}

static void block_add(CUmemGenericAllocationHandle handle, int device, uint64_t bytes)
{
    struct block *block = malloc(sizeof(*block));
    if (block == NULL) return; /* stays charged until the process ends */
    *block = (struct block){.handle = handle, .bytes = bytes, .device = device, .references = 1};
    cb_lock(&blocks_lock);
    block->next = blocks[bucket_index(handle)];
    blocks[bucket_index(handle)] = block;
    cb_unlock(&blocks_lock);
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
    if (device >= 0) block_add(*handle, device, bytes);
    cb_commit(device, bytes);
    return result;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CB_ENTER();
    /* Decremented before the driver releases: afterwards the handle may already mean another block. */
    cb_lock(&blocks_lock);
    struct block *block = block_find(handle);
    if (block != NULL) {
        block->references--;
        block->pins++;
    }
    cb_unlock(&blocks_lock);
    CUresult result = CB_REAL(cuMemRelease)(handle);
    if (block == NULL) return result;
    cb_lock(&blocks_lock);
    block->pins--;
    if (result != CUDA_SUCCESS) block->references++;
    block = block_unlink_if_unused(block);
    cb_unlock(&blocks_lock);
    block_free(block);
    return result;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuMemRetainAllocationHandle)(handle, addr);
    if (result != CUDA_SUCCESS) return result;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)addr;
    cb_lock(&blocks_lock);
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct mapping *mapping = mappings[i]; mapping != NULL; mapping = mapping->next) {
            if (address < mapping->address || address - mapping->address >= mapping->size ||
                mapping->block == NULL)
                continue;
            /* A released block lives on in its mapping: it is found under the handle that means it now. */
            struct block *block = mapping->block;
            if (block->handle == *handle) block->references++;
            i = BUCKETS - 1;
            break;
        }
    }
    cb_unlock(&blocks_lock);
    return result;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                                CUmemAllocationHandleType shHandleType)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuMemImportFromShareableHandle)(handle, osHandle, shHandleType);
    if (result != CUDA_SUCCESS) return result;
    /*
     * An import of this process's own export may return the same handle, which then holds one more reference.
     */
    cb_lock(&blocks_lock);
    struct block *block = block_find(*handle);
    if (block != NULL) block->references++;
    cb_unlock(&blocks_lock);
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
    cb_lock(&blocks_lock);
    struct block *block = block_find(handle);
    *mapping = (struct mapping){.address = ptr, .size = size, .block = block};
    if (block != NULL) block->mappings++;
    mapping->next = mappings[bucket_index(ptr)];
    mappings[bucket_index(ptr)] = mapping;
    cb_unlock(&blocks_lock);
    return result;
}

/* Requires the lock. Remove the mapping that starts at `address` from the table and return it. */
static struct mapping *mapping_take(CUdeviceptr address)
{
    for (struct mapping **link = &mappings[bucket_index(address)]; *link != NULL; link = &(*link)->next) {
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
    /*
     * One call may cover several adjacent mappings; they leave the table before the driver lets another thread
     * map there again.
     */
    struct mapping *taken = NULL, *mapping;
    CUdeviceptr end = ptr + size;
    cb_lock(&blocks_lock);
    for (CUdeviceptr at = ptr; at < end && (mapping = mapping_take(at)) != NULL; at += mapping->size) {
        mapping->next = taken;
        taken = mapping;
    }
    cb_unlock(&blocks_lock);
    CUresult result = CB_REAL(cuMemUnmap)(ptr, size);
    while (taken != NULL) {
        struct block *unused = NULL;
        mapping = taken;
        taken = mapping->next;
        cb_lock(&blocks_lock);
        if (result != CUDA_SUCCESS) {
            mapping->next = mappings[bucket_index(mapping->address)];
            mappings[bucket_index(mapping->address)] = mapping;
            mapping = NULL;
        } else if (mapping->block != NULL) {
            mapping->block->mappings--;
            unused = block_unlink_if_unused(mapping->block);
        }
        cb_unlock(&blocks_lock);
        block_free(unused);
        free(mapping);
    }
    return result;
}

static void blocks_after_fork(void)
{
    for (unsigned i = 0; i < BUCKETS; i++) {
        blocks[i] = NULL;
        mappings[i] = NULL;
    }
    blocks_lock.held = 0;
}
CB_AT_FORK(blocks_after_fork);
