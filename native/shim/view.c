/* Hooks that report a device's memory to the program: the slice's, not the card's. */
#include "shim/base.h"

#include "shim/charge.h"
#include "shim/device.h"
#include "shim/pool.h"
#include "shim/real.h"
#include "shim/start.h"

#include <limits.h>

static unsigned int to_unsigned_int(uint64_t bytes)
{
    return bytes > UINT_MAX ? UINT_MAX : (unsigned int)bytes;
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free, size_t *total)
{
    size_t real_free = 0, real_total = 0;
    CB_ENTER();
    cb_pools_settle();
    CUresult result = CB_REAL(cuMemGetInfo_v2)(&real_free, &real_total);
    int device = result == CUDA_SUCCESS ? cb_device_current() : -1;
    if (device >= 0) {
        uint64_t limit, left = cb_limit_left(device, &limit);
        if (limit != 0) {
            real_total = limit;
            if (left < real_free || cb_spills(device)) /* pages of other containers make room for ours */
                real_free = left; /* an overcommitted card may have less free than the slice has left */
        }
    }
    if (result == CUDA_SUCCESS && free != NULL) *free = real_free;
    if (result == CUDA_SUCCESS && total != NULL) *total = real_total;
    return result;
}

CUresult CUDAAPI cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    size_t wide_free = 0, wide_total = 0;
    CB_ENTER();
    CUresult result = cuMemGetInfo_v2(&wide_free, &wide_total);
    if (result == CUDA_SUCCESS && free != NULL) *free = to_unsigned_int(wide_free);
    if (result == CUDA_SUCCESS && total != NULL) *total = to_unsigned_int(wide_total);
    return result;
}

static uint64_t visible_memory_limit(CUdevice ordinal, uint64_t real)
{
    int device = cb_device_of(ordinal);
    uint64_t limit = device >= 0 ? cb_cap(&cb.limits->device[device]) : 0;
    return limit != 0 && (limit < real || cb_spills(device)) ? limit : real;
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuDeviceTotalMem_v2)(bytes, dev);
    if (result == CUDA_SUCCESS && bytes != NULL) *bytes = visible_memory_limit(dev, *bytes);
    return result;
}

CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuDeviceTotalMem)(bytes, dev);
    if (result == CUDA_SUCCESS && bytes != NULL) *bytes = to_unsigned_int(visible_memory_limit(dev, *bytes));
    return result;
}
