/* Driver calls that create, record, query and wait for events. */
#include "sim/cuda/context/context.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/event.h"
#include "sim/cuda/stream/stream.h"
#include "sim/cuda/stream/stream_work.h"

EXPORT CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    CONTEXT_OR_RETURN(c);
    if (!phEvent || (Flags & ~7u)) return CUDA_ERROR_INVALID_VALUE;
    if ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    struct event *e = object_new(KIND_EVENT, sizeof *e);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    e->home = e->context = context_home(c);
    e->home_id = e->context_id = e->home->id;
    e->flags = Flags;
    *phEvent = (CUevent)e;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent hEvent)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct event *e = object_get(hEvent, KIND_EVENT);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    struct context *c = event_context(e);
    event_hold(e);
    e->object.kind = KIND_EVENT_ENDING;
    if (c) {
        pthread_mutex_lock(&c->lock);
        event_unmark(e);
        pthread_mutex_unlock(&c->lock);
    }
    event_release(e);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy(CUevent hEvent)
{
    return cuEventDestroy_v2(hEvent);
}

static CUresult event_record_in(struct event *e, CUstream hStream)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (capture_record(s, e, &result)) return result;
    if (!event_move(e, s->context)) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&s->context->lock);
    event_unmark(e);
    if (e->state == EVENT_POSTED) event_supersede(e, e->number);
    e->generation++;
    e->state = EVENT_PENDING;
    uint64_t generation = e->generation;
    pthread_mutex_unlock(&s->context->lock);
    return stream_submit(s, &(struct work){.kind = WORK_RECORD, .event = e, .event_generation = generation});
}

EXPORT CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    struct event *e;
    CUresult result = event_get(hEvent, &e);
    return result != CUDA_SUCCESS ? result : event_record_in(e, hStream);
}

EXPORT CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    if (flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
    return cuEventRecord(hEvent, hStream);
}

EXPORT CUresult cuEventQuery(CUevent hEvent)
{
    struct event *e;
    OK_OR_RETURN(event_get(hEvent, &e));
    if (e->capture) return CUDA_ERROR_CAPTURED_EVENT;
    if (!event_done(e)) return CUDA_ERROR_NOT_READY;
    return context_health(e->context);
}

EXPORT CUresult cuEventSynchronize(CUevent hEvent)
{
    struct event *e;
    CUresult result = event_get(hEvent, &e);
    if (result != CUDA_SUCCESS) return result;
    if (e->capture) return CUDA_ERROR_CAPTURED_EVENT;
    result = capture_forbids();
    return result != CUDA_SUCCESS ? result : event_wait(e);
}

EXPORT CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    struct event *a, *b;
    CUresult result = event_get(hStart, &a);
    if (result == CUDA_SUCCESS) result = event_get(hEnd, &b);
    if (result != CUDA_SUCCESS) return result;
    if (!pMilliseconds) return CUDA_ERROR_INVALID_VALUE;
    if (a->home != b->home || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (a->state == EVENT_NEVER || b->state == EVENT_NEVER) return CUDA_ERROR_INVALID_HANDLE;
    if (!event_done(a) || !event_done(b)) return CUDA_ERROR_NOT_READY;
    *pMilliseconds = (float)(((double)b->end_ns - (double)a->end_ns) / 1e6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

EXPORT CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    struct event *e;
    struct stream *s;
    CUresult result = event_get(hEvent, &e);
    if (result == CUDA_SUCCESS) result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (Flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
    if (capture_wait(s, e, &result)) return result;
    struct context *c = s->context;
    pthread_mutex_lock(&c->lock);
    bool known = e->context == c && e->state != EVENT_PENDING;
    struct depend effects = e->effects;
    uint64_t generation = e->context == c ? e->generation : 0;
    bool nothing = e->state == EVENT_NEVER || (known && event_effects_done(e));
    if (known && e->state == EVENT_POSTED) stream_follow(s, e->number);
    pthread_mutex_unlock(&c->lock);
    if (nothing) return CUDA_SUCCESS;
    /* Posted in one context: the order of the queue is the wait. Otherwise the stream's thread waits. */
    if (known) return stream_submit(s, &(struct work){.kind = WORK_EFFECT, .after = effects});
    if (!generation) return stream_submit(s, &(struct work){.kind = WORK_WAIT, .event = e});
    return stream_submit(
        s, &(struct work){.kind = WORK_WAIT, .event = e, .event_generation = generation, .after = effects});
}
