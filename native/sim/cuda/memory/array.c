/*
 * Arrays and mipmapped arrays: row-major images in device memory behind a handle, and texture and surface
 * objects that refer to them (no registered kernel samples them, so an object only stores its description).
 */
#include "sim/cuda/memory/array.h"

#include "sim/cuda/context/context.h"
#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream_work.h"

/*
 * Guards the end of an array, by the program or with its context: while it is held, a handle found alive and
 * its memory stay valid.
 */
static pthread_mutex_t arrays_lock = PTHREAD_MUTEX_INITIALIZER;

struct mipmap {
    struct object object;
    uint32_t levels;
    struct array *level[32];
};

size_t format_bytes(CUarray_format f)
{
    switch (f) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

static CUresult array_make(struct context *c, const CUDA_ARRAY3D_DESCRIPTOR *d, struct array **out)
{
    size_t component = format_bytes(d->Format);
    if (component == 0) return CUDA_ERROR_INVALID_VALUE;
    if ((d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4) || d->Width == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (d->Width > 1u << 28 || d->Height > 1u << 20 || d->Depth > 1u << 20 ||
        (d->Depth && !d->Height && !(d->Flags & CUDA_ARRAY3D_LAYERED)))
        return CUDA_ERROR_INVALID_VALUE;
    struct array *a = object_new(KIND_ARRAY, sizeof *a);
    if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
    a->desc = *d;
    a->device = c->device;
    a->element = component * d->NumChannels;
    a->row_bytes = d->Height ? sim_round_up(a->element * d->Width, 32) : a->element * d->Width;
    a->slice_bytes = a->row_bytes * (d->Height ? d->Height : 1);
    unsigned __int128 bytes = (unsigned __int128)a->slice_bytes * (d->Depth ? d->Depth : 1);
    CUresult result = bytes >> 46 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    a->bytes = (size_t)bytes;
    if (result == CUDA_SUCCESS) result = memory_take(c, c->device, a->bytes, MEMORY_DEVICE, &a->range);
    if (result != CUDA_SUCCESS) {
        object_free(a);
        return result;
    }
    a->range->owner = a;
    a->base = a->range->base;
    *out = a;
    return CUDA_SUCCESS;
}

/*
 * Requires the lock, except for an array that is not published yet. If its context is being destroyed, nothing
 * is done here: array_drop_with_context() follows.
 */
static void array_drop(struct array *a)
{
    a->mipmap = NULL;
    if (!memory_claim(a->range)) return;
    memory_drop(a->range);
    object_free(a);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    struct context *c;
    struct array *a;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!pHandle || !pAllocateArray) return CUDA_ERROR_INVALID_VALUE;
    if (pAllocateArray->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return unserved("sparse arrays");
    result = array_make(c, pAllocateArray, &a);
    if (result == CUDA_SUCCESS) *pHandle = (CUarray)a;
    return result;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    if (!pAllocateArray) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = pAllocateArray->Width,
                                 .Height = pAllocateArray->Height,
                                 .Format = pAllocateArray->Format,
                                 .NumChannels = pAllocateArray->NumChannels};
    return cuArray3DCreate_v2(pHandle, &d);
}

static CUresult array_get(CUarray handle, struct array **out)
{
    CONTEXT_OR_RETURN(c);
    *out = object_get(handle, KIND_ARRAY);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuArrayDestroy(CUarray hArray)
{
    struct array *a;
    OK_OR_RETURN(array_get(hArray, &a));
    if (a->mipmap) return CUDA_ERROR_INVALID_VALUE;
    context_synchronize(context_current());
    pthread_mutex_lock(&arrays_lock);
    bool alive = object_get(hArray, KIND_ARRAY);
    if (alive) array_drop(a);
    pthread_mutex_unlock(&arrays_lock);
    return alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    struct array *a;
    OK_OR_RETURN(array_get(hArray, &a));
    if (!pArrayDescriptor) return CUDA_ERROR_INVALID_VALUE;
    *pArrayDescriptor = a->desc;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    struct array *a;
    OK_OR_RETURN(array_get(hArray, &a));
    if (!pArrayDescriptor) return CUDA_ERROR_INVALID_VALUE;
    *pArrayDescriptor =
        (CUDA_ARRAY_DESCRIPTOR){a->desc.Width, a->desc.Height, a->desc.Format, a->desc.NumChannels};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                             CUarray array, CUdevice device)
{
    struct array *a;
    OK_OR_RETURN(array_get(array, &a));
    if (!memoryRequirements) return CUDA_ERROR_INVALID_VALUE;
    if (!device_get(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&arrays_lock);
    bool alive = object_get(array, KIND_ARRAY);
    if (alive)
        *memoryRequirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = a->range->charged, .alignment = 512};
    pthread_mutex_unlock(&arrays_lock);
    return alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- mipmapped arrays: one array for each level ---- */

static size_t level_extent(size_t v, uint32_t level)
{
    return v == 0 ? 0 : v >> level ? v >> level : 1;
}

static void mipmap_drop(struct mipmap *m)
{
    for (uint32_t i = 0; i < m->levels; i++)
        array_drop(m->level[i]);
    object_free(m);
}

void array_drop_with_context(struct array *a)
{
    pthread_mutex_lock(&arrays_lock);
    struct mipmap *m = a->mipmap;
    for (uint32_t i = 0; m && i < m->levels; i++)
        m->level[i]->mipmap = NULL;
    if (m) object_free(m);
    object_free(a);
    pthread_mutex_unlock(&arrays_lock);
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                       const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                       unsigned int numMipmapLevels)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!pHandle || !pMipmappedArrayDesc || numMipmapLevels == 0) return CUDA_ERROR_INVALID_VALUE;
    size_t most = pMipmappedArrayDesc->Width;
    if (pMipmappedArrayDesc->Height > most) most = pMipmappedArrayDesc->Height;
    if (pMipmappedArrayDesc->Depth > most) most = pMipmappedArrayDesc->Depth;
    uint32_t possible = 1;
    while (most >> possible && possible < 31)
        possible++;
    struct mipmap *m = object_new(KIND_MIPMAP, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t wanted = numMipmapLevels < possible ? numMipmapLevels : possible;
    for (uint32_t i = 0; i < wanted && result == CUDA_SUCCESS; i++) {
        CUDA_ARRAY3D_DESCRIPTOR d = *pMipmappedArrayDesc;
        d.Width = level_extent(d.Width, i);
        d.Height = level_extent(d.Height, i);
        if (!(d.Flags & CUDA_ARRAY3D_LAYERED)) d.Depth = level_extent(d.Depth, i);
        result = array_make(c, &d, &m->level[i]);
        if (result == CUDA_SUCCESS) {
            m->level[i]->mipmap = m;
            m->levels++;
        }
    }
    if (result != CUDA_SUCCESS) {
        mipmap_drop(m);
        return result;
    }
    *pHandle = (CUmipmappedArray)m;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray,
                                         unsigned int level)
{
    CONTEXT_OR_RETURN(c);
    const struct mipmap *m = object_get(hMipmappedArray, KIND_MIPMAP);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    if (!pLevelArray || level >= m->levels) return CUDA_ERROR_INVALID_VALUE;
    *pLevelArray = (CUarray)m->level[level];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    CONTEXT_OR_RETURN(c);
    if (!object_get(hMipmappedArray, KIND_MIPMAP)) return CUDA_ERROR_INVALID_HANDLE;
    context_synchronize(c);
    pthread_mutex_lock(&arrays_lock);
    struct mipmap *m = object_get(hMipmappedArray, KIND_MIPMAP);
    if (m) mipmap_drop(m);
    pthread_mutex_unlock(&arrays_lock);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                                      CUmipmappedArray mipmap, CUdevice device)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!object_get(mipmap, KIND_MIPMAP)) return CUDA_ERROR_INVALID_HANDLE;
    if (!memoryRequirements) return CUDA_ERROR_INVALID_VALUE;
    if (!device_get(device)) return CUDA_ERROR_INVALID_DEVICE;
    *memoryRequirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.alignment = 512};
    pthread_mutex_lock(&arrays_lock);
    const struct mipmap *m = object_get(mipmap, KIND_MIPMAP);
    for (uint32_t i = 0; m && i < m->levels; i++)
        memoryRequirements->size += m->level[i]->range->charged;
    pthread_mutex_unlock(&arrays_lock);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- textures and surfaces ---- */

struct texture {
    struct object object;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
};

static CUresult texture_make(unsigned long long *out, const CUDA_RESOURCE_DESC *r, const CUDA_TEXTURE_DESC *t)
{
    CONTEXT_OR_RETURN(c);
    if (!out || !r) return CUDA_ERROR_INVALID_VALUE;
    if (r->resType == CU_RESOURCE_TYPE_ARRAY && !object_get(r->res.array.hArray, KIND_ARRAY))
        return CUDA_ERROR_INVALID_VALUE;
    struct texture *x = object_new(KIND_TEXTURE, sizeof *x);
    if (!x) return CUDA_ERROR_OUT_OF_MEMORY;
    x->resource = *r;
    if (t) x->texture = *t;
    *out = (unsigned long long)x;
    return CUDA_SUCCESS;
}

static CUresult texture_drop(unsigned long long handle)
{
    struct texture *x = object_get((void *)handle, KIND_TEXTURE);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!x) return CUDA_ERROR_INVALID_VALUE;
    object_free(x);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuTexObjectCreate(CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
                                  const CUDA_TEXTURE_DESC *pTexDesc,
                                  const CUDA_RESOURCE_VIEW_DESC *pResViewDesc)
{
    (void)pResViewDesc;
    return pTexDesc ? texture_make(pTexObject, pResDesc, pTexDesc) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuTexObjectDestroy(CUtexObject texObject)
{
    return texture_drop(texObject);
}

EXPORT CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUtexObject texObject)
{
    const struct texture *x = object_get((void *)texObject, KIND_TEXTURE);
    if (!x || !pResDesc) return CUDA_ERROR_INVALID_VALUE;
    *pResDesc = x->resource;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *pTexDesc, CUtexObject texObject)
{
    const struct texture *x = object_get((void *)texObject, KIND_TEXTURE);
    if (!x || !pTexDesc) return CUDA_ERROR_INVALID_VALUE;
    *pTexDesc = x->texture;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuSurfObjectCreate(CUsurfObject *pSurfObject, const CUDA_RESOURCE_DESC *pResDesc)
{
    return texture_make(pSurfObject, pResDesc, NULL);
}

EXPORT CUresult cuSurfObjectDestroy(CUsurfObject surfObject)
{
    return texture_drop(surfObject);
}

EXPORT CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUsurfObject surfObject)
{
    return cuTexObjectGetResourceDesc(pResDesc, surfObject);
}
