#include "remote/worker/watch.h"

#include "remote/worker/generated.h"
#include "remote/worker/outbox.h"
#include "remote/worker/output.h"
#include "remote/worker/pending_copies.h"

#include <pthread.h>
#include <time.h>

#define BATCH     64
#define BUSY_MAX  16 /* streams known to have work left in one pass over the list */
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
    pthread_cond_t changed; /* something was added, or everything was reported */
    struct watch *first, **last;
    unsigned int telling; /* threads that have taken entries and not reported them yet */
    bool started, asleep;
} watches = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .last = &watches.first};
static struct watch *by_event[CB_OBJECTS_MAX]; /* indexed by number; a program uses few of these pages */

/* ---- the list; requires the lock ---- */

static void watch_unlink(struct watch *w)
{
    *w->from = w->next;
    if (w->next)
        w->next->from = w->from;
    else
        watches.last = w->from;
    if (w->event) by_event[cb_object_number(w->id)] = NULL;
}

static void watch_append(struct watch *w)
{
    w->next = NULL;
    w->from = watches.last;
    *watches.last = w;
    watches.last = &w->next;
    if (w->event) by_event[cb_object_number(w->id)] = w;
}

static bool stream_is_busy(CUstream *busy, unsigned int count, CUstream stream)
{
    for (unsigned int i = 0; i < count; i++) {
        if (busy[i] == stream) return true;
    }
    return false;
}

static CUresult watch_query(const struct watch *w)
{
    if (w->event) return CB_CALL(cuEventQuery)(w->event);
    /* the default stream is a separate one in each context */
    CUresult result = CB_CALL(cuCtxPushCurrent_v2)(w->context);
    if (result != CUDA_SUCCESS) return result;
    result = CB_CALL(cuStreamQuery)(w->stream);
    CB_CALL(cuCtxPopCurrent_v2)(NULL);
    return result;
}

/* Take entries that are done; an entry that follows an unfinished one in its stream is not done either. */
static unsigned int watches_take_done(struct done *done)
{
    CUstream busy[BUSY_MAX];
    unsigned int busy_count = 0, count = 0;
    for (struct watch *w = watches.first, *next; w && count < BATCH; w = next) {
        next = w->next;
        if (w->event && stream_is_busy(busy, busy_count, w->stream)) continue;
        CUresult result = watch_query(w);
        if (result == CUDA_ERROR_NOT_READY) {
            if (w->event && busy_count < BUSY_MAX) busy[busy_count++] = w->stream;
            continue;
        }
        done[count++] = (struct done){w->id, w->frame, result};
        watch_unlink(w);
        free(w);
    }
    return count;
}

/* ---- reporting ---- */

static void done_report(const struct done *done, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++)
        cb_outbox_notice(&done[i].frame, CB_DONE, 0, done[i].result, &done[i].id, 1, NULL, 0);
}

bool cb_watch_report(void)
{
    struct done done[BATCH];
    bool told = false;
    pthread_mutex_lock(&watches.lock);
    for (unsigned int count; watches.first && (count = watches_take_done(done));) {
        watches.telling++;
        pthread_mutex_unlock(&watches.lock);
        cb_pending_copies_send(); /* data copied before it is sent first */
        cb_output_send();
        done_report(done, count);
        told = true;
        pthread_mutex_lock(&watches.lock);
        if (!--watches.telling) pthread_cond_broadcast(&watches.changed);
    }
    while (watches.telling)
        pthread_cond_wait(&watches.changed, &watches.lock);
    pthread_mutex_unlock(&watches.lock);
    cb_pending_copies_send();
    cb_output_send();
    return told;
}

static void *watcher_run(void *nothing)
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
        bool told = some && cb_watch_report();
        if (told) cb_outbox_flush();
        pause_ns = told || !some ? PAUSE_MIN : pause_ns < PAUSE_MAX / 2 ? 2 * pause_ns : PAUSE_MAX;
    }
    return nothing;
}

/* ---- adding ---- */

static void watch_fill(struct watch *w, const struct cb_request *q, uint64_t id, CUevent event,
                       CUstream stream)
{
    w->id = id;
    w->frame = q->frame;
    w->event = event;
    w->stream = stream;
    CB_CALL(cuCtxGetCurrent)(&w->context);
}

static struct watch *watch_find_stream(const struct cb_request *q, uint64_t id)
{
    struct watch *w = watches.first;
    while (w && (w->event || w->id != id || w->frame.context != q->frame.context ||
                 w->frame.thread != q->frame.thread))
        w = w->next;
    return w;
}

/* Return false if the program has to ask. */
static bool watch_add(const struct cb_request *q, uint64_t id, CUevent event, CUstream stream)
{
    pthread_t thread;
    pthread_mutex_lock(&watches.lock);
    struct watch *w = event ? by_event[cb_object_number(id)] : watch_find_stream(q, id);
    if (w)
        watch_unlink(w);
    else
        w = malloc(sizeof *w);
    if (!watches.started) watches.started = pthread_create(&thread, NULL, watcher_run, NULL) == 0;
    bool ok = w && watches.started;
    if (ok) {
        watch_fill(w, q, id, event, stream);
        watch_append(w);
        if (watches.asleep) pthread_cond_broadcast(&watches.changed);
    } else {
        free(w);
    }
    pthread_mutex_unlock(&watches.lock);
    return ok;
}

static bool event_is_watchable(uint64_t event)
{
    return cb_object_number(event) < CB_WORKER_NUMBER;
}

/* ---- handlers ---- */

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
    if (!watched || !event_is_watchable(id)) return result;
    if (result != CUDA_SUCCESS || !watch_add(q, id, event, stream))
        done_report(&(struct done){id, q->frame, result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result},
                    1);
    return result;
}

/* Put one word: done, not done and will be reported, or not done. */
static CUresult query_answer(struct cb_request *q, CUresult result, bool watched)
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
    watched = watched && result == CUDA_ERROR_NOT_READY && event_is_watchable(id);
    return query_answer(q, result,
                        /* the event was recorded in no stream that we know */
                        watched && watch_add(q, id, event, (CUstream)event));
}

CUresult cb_on_STREAM_QUERY(struct cb_request *q)
{
    uint64_t id = cb_take_word(q);
    CUstream stream = cb_object_of(q, CB_KIND_STREAM, id);
    bool watched = cb_take_word(q) != 0;
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    CUresult result = CB_CALL(cuStreamQuery)(stream);
    return query_answer(q, result,
                        watched && result == CUDA_ERROR_NOT_READY && watch_add(q, id, NULL, stream));
}

/* ---- destroyed objects ---- */

/* Remove the entries that `matters` selects; they are not accessed any more when this returns. */
static void watches_drop(bool (*matters)(const struct watch *w, uint64_t what), uint64_t what, bool told)
{
    struct done done[BATCH];
    unsigned int count = 0;
    pthread_mutex_lock(&watches.lock);
    for (struct watch *w = watches.first, *next; w; w = next) {
        next = w->next;
        if (!matters(w, what)) continue;
        if (told && count == BATCH) {
            done_report(done, count);
            count = 0;
        }
        done[count] = (struct done){w->id, w->frame, CUDA_ERROR_UNKNOWN};
        count += told;
        watch_unlink(w);
        free(w);
    }
    pthread_mutex_unlock(&watches.lock);
    done_report(done, count);
}

static bool watch_is_of_object(const struct watch *w, uint64_t id)
{
    return w->id == id;
}

static bool watch_is_in_context(const struct watch *w, uint64_t context)
{
    return w->frame.context == context;
}

static bool watch_is_of_stream(const struct watch *w, uint64_t nothing)
{
    (void)nothing;
    return !w->event;
}

void cb_watch_drop(uint64_t id)
{
    if (!cb_object_is(id, CB_KIND_EVENT)) {
        watches_drop(watch_is_of_object, id, false);
        return;
    }
    if (!event_is_watchable(id)) return;
    pthread_mutex_lock(&watches.lock);
    struct watch *w = by_event[cb_object_number(id)];
    if (w) watch_unlink(w);
    free(w);
    pthread_mutex_unlock(&watches.lock);
}

void cb_watch_drop_context(uint16_t context)
{
    watches_drop(watch_is_in_context, context, true);
}

void cb_watch_capture(void)
{
    watches_drop(watch_is_of_stream, 0, true);
}
