/* Fills: checked here for the errors that are returned at once, and sent. */
#include "remote/client/memory/copy.h"
#include "remote/client/memory/memory_ranges.h"
#include "remote/client/memory/pinned_mapping.h"

static CUresult fill_send(CUdeviceptr dst, size_t pitch, uint32_t value, uint32_t element, size_t width,
                          size_t height, CUstream stream, bool async)
{
    struct cb_call call;
    size_t row;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    CB_OK(cb_stream_check(stream));
    if (!width || !height) return CUDA_SUCCESS;
    if (width > 1ull << 46 || height > 1ull << 32 || dst % element) return CUDA_ERROR_INVALID_VALUE;
    row = width * element;
    if (height > 1 && pitch < row) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_pinned_map_for(dst));
    CB_OK(cb_call_begin(&call, CB_OP_FILL, CB_IN_CONTEXT));
    const uint64_t words[] = {dst, pitch, value, element, width, height};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cb_put_word(&call, words[i]);
    cb_put_handle(&call, CB_KIND_STREAM, (uintptr_t)stream);
    cb_put_word(&call, async);
    return cb_copy_finish(&call, !cb_range_is_device(dst, (height - 1) * pitch + row), !async);
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
    return fill_send(dstDevice, 0, uc, 1, N, 1, NULL, false);
}

EXPORT CUresult cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
    return fill_send(dstDevice, 0, us, 2, N, 1, NULL, false);
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
    return fill_send(dstDevice, 0, ui, 4, N, 1, NULL, false);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
{
    return fill_send(dstDevice, 0, uc, 1, N, 1, hStream, true);
}

EXPORT CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream)
{
    return fill_send(dstDevice, 0, us, 2, N, 1, hStream, true);
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)
{
    return fill_send(dstDevice, 0, ui, 4, N, 1, hStream, true);
}

EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                                size_t Height)
{
    return fill_send(dstDevice, dstPitch, uc, 1, Width, Height, NULL, false);
}

EXPORT CUresult cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                                 size_t Height)
{
    return fill_send(dstDevice, dstPitch, us, 2, Width, Height, NULL, false);
}

EXPORT CUresult cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                                 size_t Height)
{
    return fill_send(dstDevice, dstPitch, ui, 4, Width, Height, NULL, false);
}

EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                                  size_t Height, CUstream hStream)
{
    return fill_send(dstDevice, dstPitch, uc, 1, Width, Height, hStream, true);
}

EXPORT CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                                   size_t Height, CUstream hStream)
{
    return fill_send(dstDevice, dstPitch, us, 2, Width, Height, hStream, true);
}

EXPORT CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                                   size_t Height, CUstream hStream)
{
    return fill_send(dstDevice, dstPitch, ui, 4, Width, Height, hStream, true);
}
