/* Pointer attributes and memory access, with the program's device numbers. */
#include "remote/span/device.h"

#define DEVICES_MAX 64

static void ordinal_to_program(const struct span_session *s, void *data)
{
    CUdevice local;
    memcpy(&local, data, sizeof local);
    if (local >= 0) local = span_device_here(s, local);
    memcpy(data, &local, sizeof local);
}

EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct span_visit v;
    CB_OK(span_enter(&v, span_of_address(ptr), 0));
    CUresult result = SPAN_CALL(v.session, cuPointerGetAttribute)(data, attribute, ptr);
    if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        ordinal_to_program(v.session, data);
    span_leave(&v);
    return result;
}

EXPORT CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                       void **data, CUdeviceptr ptr)
{
    struct span_visit v;
    CB_OK(span_enter(&v, span_of_address(ptr), 0));
    CUresult result = SPAN_CALL(v.session, cuPointerGetAttributes)(numAttributes, attributes, data, ptr);
    for (unsigned int i = 0; i < numAttributes && result == CUDA_SUCCESS; i++) {
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) ordinal_to_program(v.session, data[i]);
    }
    span_leave(&v);
    return result;
}

/* No server can access another's memory. */
static CUresult access_for_session(const struct span_session *s, const CUmemAccessDesc *given, size_t count,
                                   CUmemAccessDesc *own)
{
    if (!given || !count || count > DEVICES_MAX) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        own[i] = given[i];
        CUresult result = span_location(s, &own[i].location);
        bool is_other = result != CUDA_SUCCESS && span_of_location(&given[i].location);
        if (result != CUDA_SUCCESS) return is_other ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : result;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    struct span_visit v;
    CUmemAccessDesc own[DEVICES_MAX];
    CB_OK(span_enter(&v, span_of_handle((uintptr_t)pool), 0));
    CUresult result = access_for_session(v.session, map, count, own);
    if (result == CUDA_SUCCESS) result = SPAN_CALL(v.session, cuMemPoolSetAccess)(pool, own, count);
    span_leave(&v);
    return result;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    struct span_visit v;
    CUmemAccessDesc own[DEVICES_MAX];
    CB_OK(span_enter(&v, span_of_address(ptr), ptr));
    CUresult result = access_for_session(v.session, desc, count, own);
    if (result == CUDA_SUCCESS) result = SPAN_CALL(v.session, cuMemSetAccess)(ptr, size, own, count);
    span_leave(&v);
    return result;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                       CUmemGenericAllocationHandle handle)
{
    struct span_visit v;
    CB_OK(span_enter(&v, span_of_handle(handle), 0));
    CUresult result = SPAN_CALL(v.session, cuMemGetAllocationPropertiesFromHandle)(prop, handle);
    if (result == CUDA_SUCCESS) span_location_here(v.session, &prop->location);
    span_leave(&v);
    return result;
}
