/*
 * Launches: packed, and sent without a question. A launch that the driver would refuse at once is asked
 * instead, so that the program gets the driver's own error.
 */
#include "remote/client/launch/launch.h"

#include "remote/client/api/object_table.h"
#include "remote/client/context/context_stack.h"
#include "remote/client/device/device_snapshot.h"
#include "remote/client/launch/launch_attributes.h"
#include "remote/client/memory/pinned_mapping.h"
#include "remote/client/module/function_info.h"

static uint32_t attribute_or_zero(const struct cb_attribute *a)
{
    return a->result == CUDA_SUCCESS && a->value > 0 ? (uint32_t)a->value : 0;
}

/* Return true if the card and the kernel allow this shape, as far as is known. */
static bool shape_fits(const struct cb_function *f, const CUlaunchConfig *s, CUdevice device)
{
    const struct cb_attribute *most = cb_device_of(device)->attribute;
    uint64_t threads = (uint64_t)s->blockDimX * s->blockDimY * s->blockDimZ;
    if (!s->gridDimX || !s->gridDimY || !s->gridDimZ || !threads) return false;
    if (threads > f->threads_max || s->sharedMemBytes > f->shared_max) return false;
    return s->gridDimX <= attribute_or_zero(&most[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X]) &&
           s->gridDimY <= attribute_or_zero(&most[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y]) &&
           s->gridDimZ <= attribute_or_zero(&most[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z]) &&
           s->blockDimX <= attribute_or_zero(&most[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X]) &&
           s->blockDimY <= attribute_or_zero(&most[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y]) &&
           s->blockDimZ <= attribute_or_zero(&most[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z]);
}

/* Return true if all blocks fit on the card at the same time; the figures for that are asked for once. */
static bool blocks_fit_together(CUfunction function, const CUlaunchConfig *s, CUdevice device)
{
    int each = 0;
    uint64_t blocks = (uint64_t)s->gridDimX * s->gridDimY * s->gridDimZ;
    uint64_t threads = (uint64_t)s->blockDimX * s->blockDimY * s->blockDimZ;
    uint32_t places =
        attribute_or_zero(&cb_device_of(device)->attribute[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]);
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, function, (int)threads, s->sharedMemBytes) ==
               CUDA_SUCCESS &&
           blocks <= (uint64_t)each * places;
}

static bool clusters_fit(const CUlaunchConfig *s, CUdevice device)
{
    const CUlaunchAttributeValue *v = cb_config_attribute(s, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    if (!v) return true;
    const struct cb_attribute *can = &cb_device_of(device)->attribute[CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH];
    uint64_t size = (uint64_t)v->clusterDim.x * v->clusterDim.y * v->clusterDim.z;
    return attribute_or_zero(can) && size && size <= 8 && s->gridDimX % v->clusterDim.x == 0 &&
           s->gridDimY % v->clusterDim.y == 0 && s->gridDimZ % v->clusterDim.z == 0;
}

static bool launch_cannot_fail(const struct cb_function *f, CUfunction function, const CUlaunchConfig *s,
                               CUdevice device, bool cooperative)
{
    return shape_fits(f, s, device) && (!s->numAttrs || clusters_fit(s, device)) &&
           (!cooperative || blocks_fit_together(function, s, device));
}

/* ---- the parameters ---- */

static CUresult parameters_put_packed(struct cb_call *c, void **extra, const struct cb_function *f)
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
    if (bytes) cb_put_bytes(c, buffer, bytes);
    return CUDA_SUCCESS;
}

static CUresult parameters_put(struct cb_call *c, void **parameters, const struct cb_function *f)
{
    size_t words = CB_WORDS(f->parameter_bytes);
    if (f->parameters && !parameters) { /* no parameters at all: the driver returns the error */
        cb_put_word(c, 0);
        return CUDA_SUCCESS;
    }
    cb_put_word(c, f->parameter_bytes);
    if (c->failed != CUDA_SUCCESS || (size_t)(c->end - c->at) < words) return CUDA_ERROR_INVALID_VALUE;
    memset(c->at, 0, words);
    for (uint32_t i = 0; i < f->parameters; i++) {
        const struct cb_parameter *p = &f->parameter[i];
        if (!parameters[i]) return CUDA_ERROR_INVALID_VALUE;
        if (p->bytes == 8)
            memcpy(c->at + p->offset, parameters[i], 8);
        else if (p->bytes == 4)
            memcpy(c->at + p->offset, parameters[i], 4);
        else
            memcpy(c->at + p->offset, parameters[i], p->bytes);
    }
    c->at += words;
    return CUDA_SUCCESS;
}

CUresult cb_put_parameters(struct cb_call *c, const struct cb_function *f, void **parameters, void **extra)
{
    return extra ? parameters_put_packed(c, extra, f) : parameters_put(c, parameters, f);
}

/* ---- launches ---- */

static CUresult launch_send(CUfunction function, const CUlaunchConfig *s, bool cooperative, void **parameters,
                            void **extra)
{
    struct cb_call call;
    struct cb_function *f = cb_function_of((uintptr_t)function);
    const struct cb_context *context = cb_context_current();
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context || !context->active)
        return cb_stack.depth ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (parameters && extra) return CUDA_ERROR_INVALID_VALUE;
    if (!f->known) CB_OK(cb_function_load_attributes(f));
    bool given = parameters || extra || !f->parameters;
    bool plain = given && launch_cannot_fail(f, function, s, context->device, cooperative);
    if (cb_arena_used) CB_OK(cb_pinned_map_parameters(parameters, extra, f));
    enum cb_op op = s->numAttrs ? CB_OP_LAUNCH_EX : CB_OP_LAUNCH;
    CB_OK(cb_call_begin(&call, op, CB_IN_CONTEXT));
    cb_put_word(&call, (uintptr_t)function);
    if (s->numAttrs) {
        cb_put_config(&call, s);
    } else {
        cb_put_word(&call, (uint64_t)s->gridDimY << 32 | s->gridDimX);
        cb_put_word(&call, (uint64_t)s->blockDimX << 32 | s->gridDimZ);
        cb_put_word(&call, (uint64_t)s->blockDimZ << 32 | s->blockDimY);
        cb_put_word(&call, (uint64_t)cooperative << 32 | s->sharedMemBytes);
        cb_put_handle(&call, CB_KIND_STREAM, (uintptr_t)s->hStream);
    }
    CUresult result = cb_put_parameters(&call, f, parameters, extra);
    if (result != CUDA_SUCCESS && call.failed == CUDA_SUCCESS) call.failed = result;
    return plain ? cb_call_send(&call) : cb_call_ask(&call);
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                               unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                               unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                               void **kernelParams, void **extra)
{
    CUlaunchConfig s = {gridDimX,  gridDimY,       gridDimZ, blockDimX, blockDimY,
                        blockDimZ, sharedMemBytes, hStream,  NULL,      0};
    return launch_send(f, &s, false, kernelParams, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                          unsigned int gridDimZ, unsigned int blockDimX,
                                          unsigned int blockDimY, unsigned int blockDimZ,
                                          unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
    CUlaunchConfig s = {gridDimX,  gridDimY,       gridDimZ, blockDimX, blockDimY,
                        blockDimZ, sharedMemBytes, hStream,  NULL,      0};
    return launch_send(f, &s, true, kernelParams, NULL);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                                 void **extra)
{
    if (!config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
    const CUlaunchAttributeValue *v = cb_config_attribute(config, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
    return launch_send(f, config, v && v->cooperative, kernelParams, extra);
}
