/* Registered host memory: a few ranges of the program's own pages, sorted by address. */
#include "sim/cuda/memory/registered_memory.h"

#include "sim/cuda/context/context.h"
#include "sim/cuda/memory/address_space.h"

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
    CONTEXT_OR_RETURN(c);
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
        r->context = context_home(c);
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
