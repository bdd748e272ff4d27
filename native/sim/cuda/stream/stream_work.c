/*
 * Execution of a stream's operations (stream_work.h has the theory).
 *
 * An operation is either completed by its issuer, under the context's lock, or deferred to the stream's thread.
 * It is deferred if something earlier that it must follow is deferred itself, if it is a host function, or if
 * its effect is large. A deferred operation that has a modelled time is posted to the card at issue
 * nevertheless, unless something without modelled time (a host function, a wait) precedes it: then it is posted
 * when that has ended.
 */
#include "sim/cuda/stream/stream_work.h"

#include "sim/cuda/context/context.h"
#include "sim/cuda/launch/kernel_output.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/event.h"
#include "sim/cuda/stream/stream.h"
#include "sim/node/mps.h"
#include "sim/node/queue.h"
#include "sim/node/state.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#define QUEUE(c)  (&process.sim.node->queue[(c)->queue])
#define LOW_WATER (SIM_QUEUE_ENTRIES * 3 / 4)

/*
 * Post one entry that follows those before it in its stream, and `also`; wait for space. Requires the context's
 * lock (dropped while waiting). Return 1 + its number.
 */
static uint64_t entry_post(struct stream *s, const struct work *w, uint64_t also)
{
    struct context *c = s->context;
    while (queue_free_entries(&process.sim, c->queue) == 0) {
        uint64_t target = QUEUE(c)->posted - LOW_WATER;
        pthread_mutex_unlock(&c->lock);
        queue_wait_through(&process.sim, c->queue, target);
        pthread_mutex_lock(&c->lock);
    }
    uint64_t place = QUEUE(c)->posted % SIM_QUEUE_ENTRIES;
    for (struct event *e; (e = c->marks[place]);) {
        e->end_ns = QUEUE(c)->entries[place].end_ns;
        if (e->end_ns < e->recorded_ns) e->end_ns = e->recorded_ns;
        e->state = EVENT_DONE;
        event_unmark(e);
    }
    struct queue_work q = {.kind = w->engine,
                           .duration_ns = w->duration_ns,
                           .sms = w->sms,
                           .after = {stream_last(s), also},
                           .follows_all = s->legacy,
                           .blocking = stream_blocks(s),
                           .touch = w->touch,
                           .touches = w->touches};
    uint64_t last = 1 + queue_post(&process.sim, c->queue, &q);
    stream_posted(s, last);
    return last;
}

void stream_follow(struct stream *s, uint64_t last)
{
    (void)entry_post(s, &(struct work){.engine = SIM_WORK_DELAY}, last);
}

/* As stream_last(), for an entry that is complete only when everything is that the legacy stream follows. */
static uint64_t stream_mark(struct stream *s)
{
    uint64_t last = stream_last(s);
    if (s->legacy && s->last != last) stream_follow(s, last);
    return stream_last(s);
}

/* Called without the lock. */
static void effect_run(struct context *c, const struct work *w)
{
    struct context *home = context_home(c); /* an error affects all contexts that share the address space */
    if (!w->effect || home->sticky != CUDA_SUCCESS) return;
    CUresult result = w->effect(c, w->argument);
    if (result != CUDA_SUCCESS && home->sticky == CUDA_SUCCESS) {
        home->sticky = result;
        sim_mps_fault(&process.sim, c->device->index, (uint32_t)result);
        if (result == CUDA_ERROR_ILLEGAL_ADDRESS)
            sim_inject_xid_at(&process.sim, c->device->index, device_place(c->device), 31,
                              (uint32_t)getpid()); /* GPU memory page fault */
    }
}

/* ---- the thread of a stream ---- */

static bool depends_are_met(const struct work *w)
{
    for (size_t i = 0; i < w->depend_count; i++) {
        if (!depend_is_met(&w->depend[i])) return false;
    }
    return true;
}

static struct depend depend_on_all(struct stream *s)
{
    return (struct depend){s, s->id, s->pushed};
}

/* Perform one deferred operation; requires the lock. */
static void operation_perform(struct stream *s, struct work *w)
{
    struct context *c = s->context;
    if (w->kind == WORK_HOST || w->kind == WORK_WAIT) {
        uint64_t last = stream_mark(s);
        pthread_mutex_unlock(&c->lock);
        if (last) queue_wait(&process.sim, c->queue, last - 1);
        if (w->kind == WORK_WAIT && w->event) event_wait_for(w->event, w->event_generation);
        effect_run(c, w);
        pthread_mutex_lock(&c->lock);
        return;
    }
    if (w->late) {
        pthread_mutex_unlock(&c->lock);
        effect_run(c, w);
        pthread_mutex_lock(&c->lock);
        w->duration_ns = w->late(c, w->argument);
        (void)entry_post(s, w, 0);
        return;
    }
    if (!w->posted && w->kind == WORK_TIMED) (void)entry_post(s, w, 0);
    if (w->kind == WORK_RECORD) {
        struct depend before = {s, s->id, s->finished};
        if (w->event->generation == w->event_generation)
            event_stamp(c, w->event, stream_mark(s), before, sim_now());
        else
            event_supersede(w->event, stream_mark(s));
        return;
    }
    pthread_mutex_unlock(&c->lock);
    effect_run(c, w);
    pthread_mutex_lock(&c->lock);
}

static void *stream_thread_run(void *argument)
{
    struct stream *s = argument;
    struct context *c = s->context;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        struct work *w = s->head;
        if (!w) {
            if (s->dying) break;
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        if (!depends_are_met(w)) {
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        operation_perform(s, w);
        if (!w->posted) s->unposted--;
        s->head = w->next;
        if (!s->head) s->tail = NULL;
        s->finished++;
        c->deferred--;
        pthread_cond_broadcast(&c->changed);
        if (w->release) w->release(w->argument);
        if (w->event) event_release(w->event);
        free(w);
    }
    s->thread_started = false;
    stream_unlink(s);
    stream_free(s);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static bool stream_thread_start(struct stream *s)
{
    if (s->thread_started) return true;
    pthread_attr_t a;
    sigset_t all, before;
    pthread_attr_init(&a);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are delivered to the program's threads only */
    s->thread_started = pthread_create(&s->thread, &a, stream_thread_run, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&a);
    return s->thread_started;
}

/* ---- issuing ---- */

static size_t dependencies_gather(struct stream *s, const struct depend *after, struct depend *out,
                                  size_t capacity)
{
    struct context *c = s->context;
    size_t n = 0;
    if (after->stream && !depend_is_met(after)) out[n++] = *after;
    if (!c->deferred || !stream_blocks(s)) return n;
    if (!s->legacy) {
        struct stream *l = c->legacy;
        if (l && l->finished < l->pushed) out[n++] = depend_on_all(l);
        return n;
    }
    for (struct stream *o = c->streams; o && n < capacity; o = o->next) {
        if (o != s && stream_blocks(o) && o->finished < o->pushed) out[n++] = depend_on_all(o);
    }
    return n;
}

/* Return true if the card's time for the next operation in `s` can be computed now. */
static bool timing_is_known(const struct stream *s, const struct depend *depend, size_t count)
{
    bool known = s->unposted == 0;
    for (size_t i = 0; i < count; i++) {
        if (!depend_is_met(&depend[i]) && depend[i].stream->unposted) known = false;
    }
    return known;
}

static CUresult operation_defer(struct stream *s, const struct work *w, const struct depend *depend,
                                size_t depend_count)
{
    struct context *c = s->context;
    size_t before = (sizeof(struct work) + depend_count * sizeof *depend + 15) & ~(size_t)15;
    struct work *copy = calloc(1, before + w->argument_bytes);
    if (!copy || !stream_thread_start(s)) {
        free(copy);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *copy = *w;
    copy->next = NULL;
    copy->depend_count = depend_count;
    memcpy(copy->depend, depend, depend_count * sizeof *depend);
    if (w->argument_bytes) {
        copy->argument = (char *)copy + before; /* aligned for anything */
        memcpy(copy->argument, w->argument, w->argument_bytes);
    }
    bool timing_known = timing_is_known(s, depend, depend_count);
    if (w->kind == WORK_HOST || w->kind == WORK_WAIT || w->kind == WORK_RECORD || w->late)
        timing_known = false;
    if (timing_known && w->kind == WORK_TIMED) (void)entry_post(s, w, 0);
    if (copy->event) event_hold(copy->event);
    copy->posted = timing_known;
    if (!copy->posted) s->unposted++;
    if (s->tail)
        s->tail->next = copy;
    else
        s->head = copy;
    s->tail = copy;
    s->pushed++;
    c->deferred++;
    pthread_cond_broadcast(&c->changed);
    return CUDA_SUCCESS;
}

/*
 * Record an event. Its time is known at issue if that of all work before it is; the effects on memory may come
 * later.
 */
static CUresult event_record_in_stream(struct stream *s, const struct work *w, const struct depend *depend,
                                       size_t count)
{
    if (!timing_is_known(s, depend, count)) {
        CUresult deferred = operation_defer(s, w, depend, count);
        w->event->effects = depend_on_all(s); /* including the record itself */
        return deferred;
    }
    CUresult result =
        count ? operation_defer(s, &(struct work){.kind = WORK_EFFECT}, depend, count) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        event_stamp(s->context, w->event, stream_mark(s), depend_on_all(s), sim_now());
    return result;
}

static CUresult operation_submit(struct stream *s, const struct work *w, bool waits)
{
    struct context *c = s->context;
    struct depend depend[64];
    size_t count = dependencies_gather(s, &w->after, depend, 64);
    if (w->kind == WORK_RECORD) return event_record_in_stream(s, w, depend, count);
    bool outstanding = s->finished < s->pushed || count;
    if (outstanding || w->kind == WORK_HOST || w->kind == WORK_WAIT || w->late || (w->heavy && !waits))
        return operation_defer(s, w, depend, count);
    if (w->kind == WORK_TIMED) (void)entry_post(s, w, 0);
    effect_run(c, w);
    if (w->release) w->release(w->argument);
    return CUDA_SUCCESS;
}

CUresult stream_submit(struct stream *s, const struct work *w)
{
    pthread_mutex_lock(&s->context->lock);
    CUresult result = operation_submit(s, w, false);
    pthread_mutex_unlock(&s->context->lock);
    return result;
}

CUresult stream_submit_and_wait(struct stream *s, const struct work *w)
{
    pthread_mutex_lock(&s->context->lock);
    CUresult result = operation_submit(s, w, true);
    pthread_mutex_unlock(&s->context->lock);
    return result == CUDA_SUCCESS ? stream_wait(s) : result;
}

/* ---- waiting ---- */

static bool effects_are_done(const struct stream *s)
{
    if (s->finished < s->pushed) return false;
    if (!s->legacy || !s->context->deferred) return true;
    for (const struct stream *o = s->context->streams; o; o = o->next) {
        if (stream_blocks(o) && o->finished < o->pushed) return false;
    }
    return true;
}

#define SNAPSHOT 128

/* Collect what is deferred now in the blocking streams, or in all; later operations are not included. */
static size_t deferred_snapshot(struct context *c, bool all, struct depend *out)
{
    size_t n = 0;
    for (struct stream *s = c->streams; s && n < SNAPSHOT; s = s->next) {
        if ((all || stream_blocks(s)) && s->finished < s->pushed) out[n++] = depend_on_all(s);
    }
    return n;
}

/* Requires the context's lock. */
static void dependencies_wait(struct context *c, const struct depend *d, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        while (!depend_is_met(&d[i]))
            pthread_cond_wait(&c->changed, &c->lock);
    }
}

CUresult stream_wait(struct stream *s)
{
    struct context *c = s->context;
    struct depend d[SNAPSHOT];
    pthread_mutex_lock(&c->lock);
    d[0] = depend_on_all(s);
    dependencies_wait(c, d, s->legacy ? deferred_snapshot(c, false, d) : 1);
    uint64_t last = stream_mark(s);
    pthread_mutex_unlock(&c->lock);
    if (last) queue_wait(&process.sim, c->queue, last - 1);
    output_flush();
    return context_health(c);
}

static void context_wait(struct context *c)
{
    struct depend d[SNAPSHOT];
    pthread_mutex_lock(&c->lock);
    size_t count;
    do {
        count = c->deferred ? deferred_snapshot(c, true, d) : 0;
        dependencies_wait(c, d, count);
    } while (count == SNAPSHOT);
    uint64_t posted = QUEUE(c)->posted;
    pthread_mutex_unlock(&c->lock);
    if (posted) queue_wait_through(&process.sim, c->queue, posted - 1);
    output_flush();
}

static struct context *green_context_after(const struct context *primary, uint64_t id)
{
    struct context *found = NULL;
    pthread_mutex_lock(&process.lock);
    for (struct context *g = process.contexts; g; g = g->next) {
        if (g->parent == primary && g->id > id && (!found || g->id < found->id)) found = g;
    }
    pthread_mutex_unlock(&process.lock);
    return found;
}

/* The work of a primary context includes that of its green ones. */
CUresult context_synchronize(struct context *c)
{
    context_wait(c);
    for (struct context *g = c->primary ? green_context_after(c, 0) : NULL; g;
         g = green_context_after(c, g->id))
        context_wait(g);
    return context_health(c);
}

/* The context that was made next after the one with this id. */
static struct context *context_after(uint64_t id)
{
    struct context *found = NULL;
    pthread_mutex_lock(&process.lock);
    for (struct context *c = process.contexts; c; c = c->next) {
        if (c->active && c->id > id && (!found || c->id < found->id)) found = c;
    }
    pthread_mutex_unlock(&process.lock);
    return found;
}

void contexts_wait(void)
{
    for (struct context *c = context_after(0); c; c = context_after(c->id))
        context_wait(c);
}

bool stream_idle(struct stream *s)
{
    struct context *c = s->context;
    pthread_mutex_lock(&c->lock);
    bool done = effects_are_done(s);
    uint64_t last = stream_mark(s);
    pthread_mutex_unlock(&c->lock);
    return done && (last == 0 || queue_done(&process.sim, c->queue, last - 1, NULL));
}
