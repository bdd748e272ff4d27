/* Launches: checked here for what the driver tells at once, packed, and sent without a question. */
#include "remote/client/current.h"
#include "remote/client/function.h"
#include "remote/client/object.h"
#include "remote/client/snapshot.h"

struct shape {
    unsigned int grid[3], block[3], shared_bytes;
    bool cooperative;
};

static CUresult check(const struct cb_function *f, const struct shape *s)
{
    CUdevice device;
    CB_OK(cuCtxGetDevice(&device));
    const struct cb_attribute *most = cb_device_of(device)->attribute;
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (!s->grid[i] || !s->block[i] ||
            s->grid[i] > (unsigned)most[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i].value ||
            s->block[i] > (unsigned)most[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i].value)
            return CUDA_ERROR_INVALID_VALUE;
        threads *= s->block[i];
    }
    return threads > f->threads_max ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult put_packed(struct cb_call *c, void **extra, const struct cb_function *f)
{
    const void *buffer = NULL;
    size_t bytes = 0;
    for (int i = 0; i < 16 && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[i + 1])
            bytes = *(const size_t *)extra[i + 1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes > CB_PARAMETER_BYTES || bytes < f->parameter_bytes || (bytes && !buffer))
        return CUDA_ERROR_INVALID_VALUE;
    cb_put_word(c, bytes);
    cb_put_bytes(c, buffer, bytes);
    return CUDA_SUCCESS;
}

static CUresult put_parameters(struct cb_call *c, void **parameters, const struct cb_function *f)
{
    if (f->parameters && !parameters) return CUDA_ERROR_INVALID_VALUE;
    cb_put_word(c, f->parameter_bytes);
    if (c->failed != CUDA_SUCCESS || (size_t)(c->end - c->at) < CB_WORDS(f->parameter_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memset(c->at, 0, CB_WORDS(f->parameter_bytes));
    for (uint32_t i = 0; i < f->parameters; i++) {
        if (!parameters[i]) return CUDA_ERROR_INVALID_VALUE;
        memcpy(c->at + f->parameter[i].offset, parameters[i], f->parameter[i].bytes);
    }
    c->at += CB_WORDS(f->parameter_bytes);
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, const struct shape *s, CUstream stream, void **parameters,
                       void **extra)
{
    struct cb_call call;
    const struct cb_function *f = cb_function_of((uintptr_t)function);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (parameters && extra) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(check(f, s));
    CB_OK(cb_call_begin(&call, CB_OP_LAUNCH, CB_IN_CONTEXT));
    cb_put_word(&call, (uintptr_t)function);
    cb_put_word(&call, (uint64_t)s->grid[1] << 32 | s->grid[0]);
    cb_put_word(&call, (uint64_t)s->block[0] << 32 | s->grid[2]);
    cb_put_word(&call, (uint64_t)s->block[2] << 32 | s->block[1]);
    cb_put_word(&call, (uint64_t)s->cooperative << 32 | s->shared_bytes);
    cb_put_handle(&call, CB_KIND_STREAM, (uintptr_t)stream);
    CUresult result = extra ? put_packed(&call, extra, f) : put_parameters(&call, parameters, f);
    if (result != CUDA_SUCCESS) call.failed = result;
    return cb_call_send(&call);
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                               unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                               unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                               void **kernelParams, void **extra)
{
    struct shape s = {
        {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, false};
    return launch(f, &s, hStream, kernelParams, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                          unsigned int gridDimZ, unsigned int blockDimX,
                                          unsigned int blockDimY, unsigned int blockDimZ,
                                          unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
    struct shape s = {
        {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, true};
    return launch(f, &s, hStream, kernelParams, NULL);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                                 void **extra)
{
    if (!config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
    struct shape s = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                      {config->blockDimX, config->blockDimY, config->blockDimZ},
                      config->sharedMemBytes,
                      false};
    for (unsigned int i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *a = &config->attrs[i];
        if (a->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            s.cooperative = a->value.cooperative != 0;
        else if (a->id != CU_LAUNCH_ATTRIBUTE_IGNORE && a->id != CU_LAUNCH_ATTRIBUTE_PRIORITY)
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    return launch(f, &s, config->hStream, kernelParams, extra);
}
