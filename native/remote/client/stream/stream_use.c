#include "remote/client/stream/stream_use.h"

#include "remote/client/api/object_table.h"
#include "remote/client/context/context_stack.h"

struct own { /* progress of the default stream of a context, or of one of its threads */
    uint16_t context, thread;
    struct cb_progress progress;
    struct own *next;
};

static pthread_mutex_t default_streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct own *default_streams;

static struct cb_progress *default_stream_progress(uint16_t context, uint16_t thread, bool make)
{
    pthread_mutex_lock(&default_streams_lock);
    struct own *o = default_streams;
    while (o && (o->context != context || o->thread != thread))
        o = o->next;
    if (!o && make && (o = calloc(1, sizeof *o))) {
        o->context = context;
        o->thread = thread;
        o->next = default_streams;
        default_streams = o;
    }
    pthread_mutex_unlock(&default_streams_lock);
    return o ? &o->progress : NULL;
}

struct cb_progress *cb_stream_progress(uint64_t stream)
{
    static __thread struct {
        struct cb_progress *progress;
        uint16_t context;
    } cache[2];
    if (stream > 2) return cb_object_progress(stream, CB_KIND_STREAM);
    bool mine = stream == 2 || (!stream && cb_per_thread);
    uint16_t context = cb_context_number();
    if (!cache[mine].progress || cache[mine].context != context) {
        cache[mine].progress = default_stream_progress(context, mine ? cb_thread_number() : 0, true);
        cache[mine].context = context;
    }
    return cache[mine].progress;
}

bool cb_stream_is_shared_default(uint64_t stream)
{
    return stream == 1 || (!stream && !cb_per_thread);
}

void cb_stream_use_note(enum cb_op op, uint64_t stream, uint32_t seq)
{
    if (op == CB_OP_STREAM_QUERY || op == CB_OP_cuStreamSynchronize || cb_stream_is_shared_default(stream))
        return;
    struct cb_progress *p = cb_stream_progress(stream);
    if (p) __atomic_store_n(&p->touched, seq, __ATOMIC_RELAXED);
}

void cb_event_use_note(enum cb_op op, uint64_t event)
{
    switch (op) {
    case CB_OP_EVENT_RECORD:
    case CB_OP_EVENT_QUERY:
    case CB_OP_cuEventSynchronize:
    case CB_OP_cuEventDestroy_v2:
    case CB_OP_cuEventElapsedTime:
    case CB_OP_cuEventElapsedTime_v2:
    case CB_OP_cuStreamWaitEvent:
        return;
    default:
        break;
    }
    struct cb_progress *p = cb_object_progress(event, CB_KIND_EVENT);
    if (p) __atomic_store_n(&p->elsewhere, true, __ATOMIC_RELAXED);
}

struct cb_progress *cb_notice_progress(const struct cb_frame *f, uint64_t id)
{
    if (id <= 2) return default_stream_progress(f->context, id == 2 ? f->thread : 0, false);
    return cb_object_progress(id, cb_object_is(id, CB_KIND_STREAM) ? CB_KIND_STREAM : CB_KIND_EVENT);
}
