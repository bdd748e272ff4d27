/*
 * Resources for green contexts: the multiprocessors of a device, whole, split, and as descriptors.
 *
 * A resource is in the program's memory; the driver's own fields are in its padding. Only whole resources, of a
 * device or of a context, can be split, and only parts of one split can be combined again.
 */
#include "sim/cuda/context/green_resource.h"

#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"

#define ORIGIN_MARK 0x4D534D43u
#define FINE_GRAIN  2u

struct origin { /* fields in the padding */
    uint32_t mark;
    int32_t ordinal;
    uint32_t split; /* number of the split that made it; 0: none */
    uint32_t first, count;
};

struct grain {
    uint32_t least, step;
};

_Static_assert(sizeof(struct origin) <= sizeof(((CUdevResource *)0)->_internal_padding), "room");

static struct grain grain_of(const struct device *d, unsigned int flags)
{
    uint32_t major = d->profile->compute_major;
    if (major < 8 || (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING))
        return (struct grain){FINE_GRAIN, FINE_GRAIN};
    return major == 8 ? (struct grain){4, 2} : (struct grain){8, 8};
}

static void resource_fill(CUdevResource *out, const struct device *d, uint32_t split, uint32_t first,
                          uint32_t count)
{
    struct origin origin = {
        .mark = ORIGIN_MARK, .ordinal = d->ordinal, .split = split, .first = first, .count = count};
    struct grain grain = grain_of(d, 0);
    memset(out, 0, sizeof *out);
    if (count == 0) return; /* CU_DEV_RESOURCE_TYPE_INVALID */
    out->type = CU_DEV_RESOURCE_TYPE_SM;
    memcpy(out->_internal_padding, &origin, sizeof origin);
    out->sm.smCount = count;
    out->sm.minSmPartitionSize = grain.least;
    out->sm.smCoscheduledAlignment = grain.step;
}

/* Read the driver's fields of a resource, after checking that the driver made it and it is unchanged. */
static CUresult resource_origin(const CUdevResource *resource, struct origin *origin, struct device **d)
{
    if (resource->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    memcpy(origin, resource->_internal_padding, sizeof *origin);
    *d = device_get(origin->ordinal);
    if (origin->mark != ORIGIN_MARK || !*d || origin->count == 0 || origin->count != resource->sm.smCount)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t all = device_multiprocessors(*d);
    return origin->first <= all && origin->count <= all - origin->first ? CUDA_SUCCESS
                                                                        : CUDA_ERROR_INVALID_VALUE;
}

CUresult resource_whole(const struct device *d, uint32_t count, CUdevResource *resource,
                        CUdevResourceType type)
{
    if (!resource) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    resource_fill(resource, d, 0, 0, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    DEVICE_OR_RETURN(d, device);
    return resource_whole(d, device_multiprocessors(d), resource, type);
}

EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups,
                                            const CUdevResource *input, CUdevResource *remaining,
                                            unsigned int useFlags, unsigned int minCount)
{
    static uint32_t splits;
    struct origin origin;
    struct device *d;
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!nbGroups || !input) return CUDA_ERROR_INVALID_VALUE;
    OK_OR_RETURN(resource_origin(input, &origin, &d));
    if (origin.split) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (useFlags & ~3u || minCount > origin.count) return CUDA_ERROR_INVALID_VALUE;
    if ((useFlags & CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE) && d->profile->compute_major < 9)
        return CUDA_ERROR_INVALID_VALUE;
    struct grain grain = grain_of(d, useFlags);
    uint32_t each = (uint32_t)sim_round_up(minCount > grain.least ? minCount : grain.least, grain.step);
    uint32_t groups = origin.count / each;
    if (!result) {
        *nbGroups = groups;
        return CUDA_SUCCESS;
    }
    if (groups == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (*nbGroups == 0) return CUDA_ERROR_INVALID_VALUE;
    if (groups > *nbGroups) groups = *nbGroups;
    uint32_t split = __atomic_add_fetch(&splits, 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < groups; i++)
        resource_fill(&result[i], d, split, origin.first + i * each, each);
    if (remaining)
        resource_fill(remaining, d, split, origin.first + groups * each, origin.count - groups * each);
    *nbGroups = groups;
    return CUDA_SUCCESS;
}

static bool origins_overlap(const struct origin *a, const struct origin *b)
{
    return a->first < b->first + b->count && b->first < a->first + a->count;
}

EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources,
                                          unsigned int nbResources)
{
    struct device *d = NULL;
    uint32_t count = 0;
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!phDesc || !resources || nbResources == 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < nbResources; i++) {
        struct origin origin, other;
        OK_OR_RETURN(resource_origin(&resources[i], &origin, &d));
        for (unsigned int k = 0; k < i; k++) {
            memcpy(&other, resources[k]._internal_padding, sizeof other);
            if (other.ordinal != origin.ordinal || other.split != origin.split ||
                origins_overlap(&origin, &other))
                return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        }
        count += origin.count;
    }
    struct resources *r = object_new(KIND_RESOURCES, sizeof *r);
    if (!r) return CUDA_ERROR_OUT_OF_MEMORY;
    r->device = d;
    r->sm_count = count;
    *phDesc = (CUdevResourceDesc)r;
    return CUDA_SUCCESS;
}
