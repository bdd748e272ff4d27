#include "remote/worker/watch.h"

#include "remote/worker/drain.h"
#include "remote/worker/generated.h"
#include "remote/worker/outbox.h"
#include "remote/worker/output.h"

#include <pthread.h>
#include <time.h>

#define BATCH     64
#define BUSY_MAX  16 /* streams that are known not to be done while we look */
#define PAUSE_MIN 20000
#define PAUSE_MAX 500000
#define IDLE_MAX  50 /* pauses without anything to watch, before the thread sleeps */

struct watch {
    uint64_t id;           /* of the event or the stream */
    struct cb_frame frame; /* of the command up to which it is watched */
    CUcontext context;
    CUevent event; /* NULL: the stream itself */
    CUstream stream;
    struct watch *next, **from;
};

struct done {
    uint64_t id;
    struct cb_frame frame;
    CUresult result;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* there is something again, or all has been told */
    struct watch *first, **last;
    unsigned int telling; /* threads that have taken some and not told them yet */
    bool started, asleep;
} watches = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .last = &watches.first};
static struct watch
    *by_event[CB_OBJECTS_MAX]; /* a program has so many at most, and touches few of these pages */

/* ---- the list, with the lock held ---- */

static void take_out(struct watch *w)
{
    *w->from = w->next;
    if (w->next)
        w->next->from = w->from;
    else
        watches.last = w->from;
    if (w->event) by_event[cb_object_number(w->id)] = NULL;
}

static void put_last(struct watch *w)
{
    w->next = NULL;
    w->from = watches.last;
    *watches.last = w;
    watches.last = &w->next;
    if (w->event) by_event[cb_object_number(w->id)] = w;
}

static bool is_busy(CUstream *busy, unsigned int count, CUstream stream)
{
    for (unsigned int i = 0; i < count; i++) {
        if (busy[i] == stream) return true;
    }
    return false;
}

static CUresult query(const struct watch *w)
{
    if (w->event) return CB_CALL(cuEventQuery)(w->event);
    CUresult result =
        CB_CALL(cuCtxPushCurrent_v2)(w->context); /* the default stream is another one in each */
    if (result != CUDA_SUCCESS) return result;
    result = CB_CALL(cuStreamQuery)(w->stream);
    CB_CALL(cuCtxPopCurrent_v2)(NULL);
    return result;
}

/* Take those that are done; what follows one that is not in its stream is not done either. */
static unsigned int take_done(struct done *done)
{
    CUstream busy[BUSY_MAX];
    unsigned int busy_count = 0, count = 0;
    for (struct watch *w = watches.first, *next; w && count < BATCH; w = next) {
        next = w->next;
        if (w->event && is_busy(busy, busy_count, w->stream)) continue;
        CUresult result = query(w);
        if (result == CUDA_ERROR_NOT_READY) {
            if (w->event && busy_count < BUSY_MAX) busy[busy_count++] = w->stream;
            continue;
        }
        done[count++] = (struct done){w->id, w->frame, result};
        take_out(w);
        free(w);
    }
    return count;
}

/* ---- telling ---- */

static void tell(const struct done *done, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++)
        cb_outbox_notice(&done[i].frame, CB_DONE, 0, done[i].result, &done[i].id, 1, NULL, 0);
}

bool cb_watch_tell(void)
{
    struct done done[BATCH];
    bool told = false;
    pthread_mutex_lock(&watches.lock);
    for (unsigned int count; watches.first && (count = take_done(done));) {
        watches.telling++;
        pthread_mutex_unlock(&watches.lock);
        cb_drain(); /* what was copied before it */
        cb_output_send();
        tell(done, count);
        told = true;
        pthread_mutex_lock(&watches.lock);
        if (!--watches.telling) pthread_cond_broadcast(&watches.changed);
    }
    while (watches.telling)
        pthread_cond_wait(&watches.changed, &watches.lock);
    pthread_mutex_unlock(&watches.lock);
    cb_drain();
    cb_output_send();
    return told;
}

static void *look(void *nothing)
{
    long pause_ns = PAUSE_MIN;
    for (unsigned int idle = 0;;) {
        struct timespec pause = {0, pause_ns};
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&watches.lock);
        idle = watches.first ? 0 : idle + 1;
        while (idle > IDLE_MAX && !watches.first) {
            watches.asleep = true;
            pthread_cond_wait(&watches.changed, &watches.lock);
        }
        watches.asleep = false;
        bool some = watches.first;
        pthread_mutex_unlock(&watches.lock);
        bool told = some && cb_watch_tell();
        if (told) cb_outbox_flush();
        pause_ns = told || !some ? PAUSE_MIN : pause_ns < PAUSE_MAX / 2 ? 2 * pause_ns : PAUSE_MAX;
    }
    return nothing;
}

/* ---- adding ---- */

static void fill(struct watch *w, const struct cb_request *q, uint64_t id, CUevent event, CUstream stream)
{
    w->id = id;
    w->frame = q->frame;
    w->event = event;
    w->stream = stream;
    CB_CALL(cuCtxGetCurrent)(&w->context);
}

static struct watch *stream_of(const struct cb_request *q, uint64_t id)
{
    struct watch *w = watches.first;
    while (w && (w->event || w->id != id || w->frame.context != q->frame.context ||
                 w->frame.thread != q->frame.thread))
        w = w->next;
    return w;
}

/* False: the program has to ask. */
static bool add(const struct cb_request *q, uint64_t id, CUevent event, CUstream stream)
{
    pthread_t thread;
    pthread_mutex_lock(&watches.lock);
    struct watch *w = event ? by_event[cb_object_number(id)] : stream_of(q, id);
    if (w)
        take_out(w);
    else
        w = malloc(sizeof *w);
    if (!watches.started) watches.started = pthread_create(&thread, NULL, look, NULL) == 0;
    bool ok = w && watches.started;
    if (ok) {
        fill(w, q, id, event, stream);
        put_last(w);
        if (watches.asleep) pthread_cond_broadcast(&watches.changed);
    } else {
        free(w);
    }
    pthread_mutex_unlock(&watches.lock);
    return ok;
}

static bool is_watchable(uint64_t event)
{
    return cb_object_number(event) < CB_WORKER_NUMBER;
}

/* ---- what is asked for ---- */

CUresult cb_on_EVENT_RECORD(struct cb_request *q)
{
    uint64_t id = cb_take_word(q);
    CUevent event = cb_object_of(q, CB_KIND_EVENT, id);
    CUstream stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    unsigned int flags = (unsigned int)cb_take_word(q);
    bool watched = cb_take_word(q) != 0;
    if (!cb_taken(q)) return CB_MALFORMED;
    CUresult result = q->failed;
    if (result == CUDA_SUCCESS && flags)
        result = CB_CALL(cuEventRecordWithFlags)(event, stream, flags);
    else if (result == CUDA_SUCCESS)
        result = CB_CALL(cuEventRecord)(event, stream);
    if (!watched || !is_watchable(id)) return result;
    if (result != CUDA_SUCCESS || !add(q, id, event, stream))
        tell(&(struct done){id, q->frame, result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result}, 1);
    return result;
}

/* A word: done, not yet but it will be told, or not yet. */
static CUresult answer(struct cb_request *q, CUresult result, bool watched)
{
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) return result;
    cb_give_word(q, result == CUDA_SUCCESS ? CB_IS_DONE : watched ? CB_WILL_BE_TOLD : CB_IS_NOT_DONE);
    return CUDA_SUCCESS;
}

CUresult cb_on_EVENT_QUERY(struct cb_request *q)
{
    uint64_t id = cb_take_word(q);
    CUevent event = cb_object_of(q, CB_KIND_EVENT, id);
    bool watched = cb_take_word(q) != 0;
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    CUresult result = CB_CALL(cuEventQuery)(event);
    watched = watched && result == CUDA_ERROR_NOT_READY && is_watchable(id);
    return answer(q, result, watched && add(q, id, event, (CUstream)event)); /* in no stream that we know */
}

CUresult cb_on_STREAM_QUERY(struct cb_request *q)
{
    uint64_t id = cb_take_word(q);
    CUstream stream = cb_object_of(q, CB_KIND_STREAM, id);
    bool watched = cb_take_word(q) != 0;
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    CUresult result = CB_CALL(cuStreamQuery)(stream);
    return answer(q, result, watched && result == CUDA_ERROR_NOT_READY && add(q, id, NULL, stream));
}

/* ---- what is no more ---- */

/* Those for which `matters` says so; they are not looked at any more when this returns. */
static void drop(bool (*matters)(const struct watch *w, uint64_t what), uint64_t what, bool told)
{
    struct done done[BATCH];
    unsigned int count = 0;
    pthread_mutex_lock(&watches.lock);
    for (struct watch *w = watches.first, *next; w; w = next) {
        next = w->next;
        if (!matters(w, what)) continue;
        if (told && count == BATCH) {
            tell(done, count);
            count = 0;
        }
        done[count] = (struct done){w->id, w->frame, CUDA_ERROR_UNKNOWN};
        count += told;
        take_out(w);
        free(w);
    }
    pthread_mutex_unlock(&watches.lock);
    tell(done, count);
}

static bool is_of(const struct watch *w, uint64_t id)
{
    return w->id == id;
}

static bool is_in(const struct watch *w, uint64_t context)
{
    return w->frame.context == context;
}

static bool is_stream(const struct watch *w, uint64_t nothing)
{
    (void)nothing;
    return !w->event;
}

void cb_watch_drop(uint64_t id)
{
    if (!cb_object_is(id, CB_KIND_EVENT)) {
        drop(is_of, id, false);
        return;
    }
    if (!is_watchable(id)) return;
    pthread_mutex_lock(&watches.lock);
    struct watch *w = by_event[cb_object_number(id)];
    if (w) take_out(w);
    free(w);
    pthread_mutex_unlock(&watches.lock);
}

void cb_watch_forget(uint16_t context)
{
    drop(is_in, context, true);
}

void cb_watch_capture(void)
{
    drop(is_stream, 0, true);
}
