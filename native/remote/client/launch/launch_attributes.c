#include "remote/client/launch/launch_attributes.h"

#include "remote/wire/code.h"

const CUlaunchAttributeValue *cb_config_attribute(const CUlaunchConfig *config, CUlaunchAttributeID id)
{
    for (unsigned int i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id == id) return &config->attrs[i].value;
    }
    return NULL;
}

/* The event of an attribute that has one; it is the first field of the value. */
static CUevent attribute_event(const CUlaunchAttribute *a)
{
    switch (a->id) {
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
        return a->value.programmaticEvent.event;
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        return a->value.launchCompletionEvent.event;
    default:
        return NULL;
    }
}

void cb_put_config(struct cb_call *c, const CUlaunchConfig *config)
{
    cb_put_word(c, (uint64_t)config->gridDimY << 32 | config->gridDimX);
    cb_put_word(c, (uint64_t)config->blockDimX << 32 | config->gridDimZ);
    cb_put_word(c, (uint64_t)config->blockDimZ << 32 | config->blockDimY);
    cb_put_word(c, config->sharedMemBytes);
    cb_put_handle(c, CB_KIND_STREAM, (uintptr_t)config->hStream);
    cb_put_word(c, config->numAttrs);
    if (config->numAttrs > CB_LAUNCH_ATTRIBUTES) c->failed = CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < config->numAttrs && c->failed == CUDA_SUCCESS; i++) {
        const CUlaunchAttribute *a = &config->attrs[i];
        CUevent event = attribute_event(a);
        if (a->id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE) c->failed = CUDA_ERROR_NOT_SUPPORTED;
        cb_put_word(c, (uint64_t)a->id);
        cb_put_bytes(c, &a->value, sizeof a->value);
        if (event) cb_put_handle(c, CB_KIND_EVENT, (uintptr_t)event);
    }
}
