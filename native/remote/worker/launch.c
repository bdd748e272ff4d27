#include "remote/worker/generated.h"

CUresult cb_on_LAUNCH(struct cb_request *q)
{
    uint64_t id = cb_take_word(q), w[4];
    for (int i = 0; i < 4; i++)
        w[i] = cb_take_word(q);
    CUstream stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    size_t bytes = cb_take_word(q);
    const void *parameters = cb_take_block(q, bytes);
    enum cb_kind kind = cb_object_is(id, CB_KIND_KERNEL) ? CB_KIND_KERNEL : CB_KIND_FUNCTION;
    CUfunction f = cb_object_of(q, kind, id); /* the driver launches kernels by the same call */
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    unsigned int v[8];
    for (int i = 0; i < 4; i++) {
        v[2 * i] = (unsigned int)w[i];
        v[2 * i + 1] = (unsigned int)(w[i] >> 32);
    }
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    if (!v[7])
        return CB_CALL(cuLaunchKernel)(f, v[0], v[1], v[2], v[3], v[4], v[5], v[6], stream, NULL, extra);
    CUlaunchAttribute cooperative = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    CUlaunchConfig config = {v[0], v[1], v[2], v[3], v[4], v[5], v[6], stream, &cooperative, 1};
    return CB_CALL(cuLaunchKernelEx)(&config, f, NULL, extra);
}
