#include "remote/worker/thread_streams.h"

#define STREAMS_MAX 4096

static struct own {
    uint16_t context, thread;
    CUstream stream;
} own[STREAMS_MAX];
static size_t stream_count;

void *cb_thread_stream(struct cb_request *q)
{
    for (size_t i = 0; i < stream_count; i++) {
        if (own[i].context == q->frame.context && own[i].thread == q->frame.thread) return own[i].stream;
    }
    CUstream made = NULL;
    CUresult result = stream_count < STREAMS_MAX ? CB_CALL(cuStreamCreate)(&made, CU_STREAM_DEFAULT)
                                                 : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        q->failed = result;
        return NULL;
    }
    own[stream_count++] = (struct own){q->frame.context, q->frame.thread, made};
    return made;
}

void cb_thread_drop_context(uint16_t context)
{
    size_t kept = 0;
    for (size_t i = 0; i < stream_count; i++) {
        if (own[i].context != context) own[kept++] = own[i];
    }
    stream_count = kept;
}
