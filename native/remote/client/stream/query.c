/*
 * Queries of events and streams, answered from known progress where possible. Once the program has queried any
 * event, the worker reports when a recorded event is done; it also reports a stream that was queried and was
 * not done.
 */
#include "remote/client/api/object_table.h"
#include "remote/client/connection/call.h"
#include "remote/client/connection/command_buffer.h"
#include "remote/client/connection/listener.h"
#include "remote/client/context/context_stack.h"
#include "remote/client/graph/capture.h"
#include "remote/client/stream/stream_use.h"
#include "remote_wrapped.h"

static bool events_reported; /* an event has been queried */

/* Progress after reading what has come. */
static enum cb_progress_state progress_now(const struct cb_progress *p)
{
    if (cb_captures_open()) return CB_PROGRESS_UNKNOWN;
    enum cb_progress_state state = cb_progress_of(p);
    if (state != CB_PROGRESS_PENDING) return state;
    cb_answers_poll();
    return cb_progress_of(p);
}

static bool done_notice_take(const struct cb_frame *f)
{
    uint64_t word[2]; /* result, which */
    if (f->bytes != sizeof word || !cb_notice_receive(word, sizeof word)) return false;
    struct cb_progress *p = cb_notice_progress(f, word[1]);
    enum cb_progress_state state = word[0] == CUDA_SUCCESS ? CB_PROGRESS_DONE : CB_PROGRESS_UNKNOWN;
    if (p) cb_progress_settle(p, f->seq, state, true);
    return true;
}

static void queries_prepare(void)
{
    cb_progress_expects = cb_listener_expect_slowly;
    cb_notice_register(CB_DONE, done_notice_take);
    pthread_atfork(NULL, NULL, cb_progress_after_fork);
}

/* ---- asking ---- */

/* Ask whether it is done; the call is filled except for whether a report is wanted. */
static CUresult query_ask(struct cb_call *call, struct cb_progress *p)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, queries_prepare);
    bool told = p && !p->elsewhere && !cb_captures_open();
    uint32_t seq = call->answer.seq;
    cb_put_word(call, told);
    if (told && call->failed == CUDA_SUCCESS) cb_progress_set(p, seq, CB_PROGRESS_ASKED);
    CUresult result = cb_call_ask(call);
    uint64_t answer = result == CUDA_SUCCESS ? cb_take_word(call) : CB_IS_NOT_DONE;
    enum cb_progress_state state = answer == CB_IS_DONE        ? CB_PROGRESS_DONE
                                   : answer == CB_WILL_BE_TOLD ? CB_PROGRESS_PENDING
                                                               : CB_PROGRESS_UNKNOWN;
    if (told) cb_progress_settle(p, seq, state, false);
    if (result == CUDA_SUCCESS && answer == CB_IS_DONE && cb_after_wait)
        cb_after_wait(CB_OP_cuCtxSynchronize);
    return result == CUDA_SUCCESS && answer != CB_IS_DONE ? CUDA_ERROR_NOT_READY : result;
}

/* The answer for something that is known to be done: what a wait for it would return. */
static CUresult answer_done(void)
{
    CB_OK(cb_context_take_failure());
    if (cb_command_buffer.gone) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (cb_after_wait) cb_after_wait(CB_OP_cuCtxSynchronize);
    return CUDA_SUCCESS;
}

static CUresult answer_not_ready(void)
{
    CB_OK(cb_context_take_failure());
    return cb_command_buffer.gone ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_ERROR_NOT_READY;
}

/* ---- events ---- */

static CUresult event_record(CUevent event, CUstream stream, unsigned int flags)
{
    struct cb_call call;
    CB_OK(cb_call_begin(&call, CB_OP_EVENT_RECORD, CB_IN_CONTEXT));
    cb_put_handle(&call, CB_KIND_EVENT, (uintptr_t)event);
    cb_put_handle(&call, CB_KIND_STREAM, (uintptr_t)stream);
    cb_put_word(&call, flags);
    struct cb_progress *p =
        call.failed == CUDA_SUCCESS ? cb_object_progress((uintptr_t)event, CB_KIND_EVENT) : NULL;
    if (p && flags) p->elsewhere = true;
    bool told = p && events_reported && !p->elsewhere && !cb_captures_open();
    cb_put_word(&call, told);
    if (p) cb_progress_set(p, call.answer.seq, told ? CB_PROGRESS_PENDING : CB_PROGRESS_UNKNOWN);
    return cb_call_send(&call);
}

EXPORT CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    return event_record(hEvent, hStream, 0);
}

EXPORT CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    return event_record(hEvent, hStream, flags);
}

EXPORT CUresult cuEventQuery(CUevent hEvent)
{
    struct cb_call call;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    struct cb_progress *p = cb_object_progress((uintptr_t)hEvent, CB_KIND_EVENT);
    enum cb_progress_state state = p ? progress_now(p) : CB_PROGRESS_UNKNOWN;
    if (state == CB_PROGRESS_DONE) return answer_done();
    if (state == CB_PROGRESS_PENDING) return answer_not_ready();
    CB_OK(cb_call_begin(&call, CB_OP_EVENT_QUERY, CB_ANYWHERE));
    events_reported = true;
    cb_put_handle(&call, CB_KIND_EVENT, (uintptr_t)hEvent);
    return query_ask(&call, p);
}

EXPORT CUresult cuEventSynchronize(CUevent hEvent)
{
    CB_OK(cb_capture_forbids());
    const struct cb_progress *p =
        cb_session_ready() ? cb_object_progress((uintptr_t)hEvent, CB_KIND_EVENT) : NULL;
    if (p && progress_now(p) == CB_PROGRESS_DONE) return answer_done();
    return cb_remote_cuEventSynchronize(hEvent);
}

/* ---- streams ---- */

/* Return true if the known progress covers all commands given to the stream. */
static bool progress_covers_stream(const struct cb_progress *p, uint64_t stream)
{
    uint32_t touched = __atomic_load_n(
        cb_stream_is_shared_default(stream) ? &cb_command_buffer.seq : &p->touched, __ATOMIC_RELAXED);
    return (int32_t)(touched - p->seq) <= 0;
}

static bool query_is_allowed(void)
{
    return cb_session_ready() && (cb_context_number() || !cb_stack.depth);
}

EXPORT CUresult cuStreamQuery(CUstream hStream)
{
    struct cb_call call;
    struct cb_progress *p = query_is_allowed() ? cb_stream_progress((uintptr_t)hStream) : NULL;
    enum cb_progress_state state = p ? progress_now(p) : CB_PROGRESS_UNKNOWN;
    if (state == CB_PROGRESS_DONE && progress_covers_stream(p, (uintptr_t)hStream)) return answer_done();
    if (state == CB_PROGRESS_PENDING) return answer_not_ready();
    CB_OK(cb_call_begin(&call, CB_OP_STREAM_QUERY, CB_NOT_IN_DEAD));
    cb_put_handle(&call, CB_KIND_STREAM, (uintptr_t)hStream);
    return query_ask(&call, p);
}

EXPORT CUresult cuStreamSynchronize(CUstream hStream)
{
    CB_OK(cb_capture_forbids());
    struct cb_progress *p = query_is_allowed() ? cb_stream_progress((uintptr_t)hStream) : NULL;
    if (p && progress_now(p) == CB_PROGRESS_DONE && progress_covers_stream(p, (uintptr_t)hStream))
        return answer_done();
    CB_OK(cb_remote_cuStreamSynchronize(hStream));
    if (p && !cb_captures_open()) cb_progress_set(p, cb_asked_seq, CB_PROGRESS_DONE);
    return CUDA_SUCCESS;
}
