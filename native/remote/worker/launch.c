#include "remote/worker/launch.h"

#include "remote/worker/generated.h"

static void launch_shape_take(struct cb_request *q, CUlaunchConfig *config, uint64_t *cooperative)
{
    uint64_t w[4];
    for (int i = 0; i < 4; i++)
        w[i] = cb_take_word(q);
    memset(config, 0, sizeof *config);
    config->gridDimX = (unsigned int)w[0];
    config->gridDimY = (unsigned int)(w[0] >> 32);
    config->gridDimZ = (unsigned int)w[1];
    config->blockDimX = (unsigned int)(w[1] >> 32);
    config->blockDimY = (unsigned int)w[2];
    config->blockDimZ = (unsigned int)(w[2] >> 32);
    config->sharedMemBytes = (unsigned int)w[3];
    *cooperative = w[3] >> 32;
    config->hStream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
}

static void launch_attribute_take(struct cb_request *q, CUlaunchAttribute *a)
{
    uint64_t event;
    a->id = (CUlaunchAttributeID)cb_take_word(q);
    cb_take_bytes(q, &a->value, sizeof a->value);
    switch (a->id) {
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE: /* contains an address */
        q->bad = true;
        return;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        memcpy(&event, &a->value, sizeof event);
        if (event) a->value.programmaticEvent.event = cb_object_of(q, CB_KIND_EVENT, cb_take_word(q));
        return;
    default:
        return;
    }
}

void cb_take_config(struct cb_request *q, struct cb_config *c)
{
    uint64_t none;
    launch_shape_take(q, &c->config, &none);
    uint64_t count = cb_take_word(q);
    if (count > CB_LAUNCH_ATTRIBUTES) q->bad = true;
    for (uint64_t i = 0; i < count && !q->bad; i++)
        launch_attribute_take(q, &c->attribute[i]);
    c->config.attrs = c->attribute;
    c->config.numAttrs = q->bad ? 0 : (unsigned int)count;
}

void *cb_take_function(struct cb_request *q)
{
    uint64_t id = cb_take_word(q); /* the driver accepts kernels where it accepts functions */
    return cb_object_of(q, cb_object_is(id, CB_KIND_KERNEL) ? CB_KIND_KERNEL : CB_KIND_FUNCTION, id);
}

CUresult cb_on_LAUNCH(struct cb_request *q)
{
    CUlaunchConfig s;
    uint64_t cooperative;
    CUfunction f = cb_take_function(q);
    launch_shape_take(q, &s, &cooperative);
    size_t bytes = cb_take_word(q);
    const void *parameters = cb_take_block(q, bytes);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    if (!cooperative)
        return CB_CALL(cuLaunchKernel)(f, s.gridDimX, s.gridDimY, s.gridDimZ, s.blockDimX, s.blockDimY,
                                       s.blockDimZ, s.sharedMemBytes, s.hStream, NULL, extra);
    CUlaunchAttribute together = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    s.attrs = &together;
    s.numAttrs = 1;
    return CB_CALL(cuLaunchKernelEx)(&s, f, NULL, extra);
}

CUresult cb_on_LAUNCH_EX(struct cb_request *q)
{
    struct cb_config c;
    CUfunction f = cb_take_function(q);
    cb_take_config(q, &c);
    size_t bytes = cb_take_word(q);
    const void *parameters = cb_take_block(q, bytes);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    return CB_CALL(cuLaunchKernelEx)(&c.config, f, NULL, extra);
}
