/* Events: the exact end time of the work before them, as the card's engine computes it. */
#include "sim/cuda/stream/event.h"

#include "sim/cuda/context/context.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream.h"
#include "sim/node/queue.h"

void event_unmark(struct event *e)
{
    if (!e->marked) return;
    for (struct event **p = &e->context->marks[(e->number - 1) % SIM_QUEUE_ENTRIES]; *p;
         p = &(*p)->next_mark) {
        if (*p != e) continue;
        *p = e->next_mark;
        break;
    }
    e->marked = false;
}

void event_hold(struct event *e)
{
    __atomic_add_fetch(&e->references, 1, __ATOMIC_RELAXED);
}

static void event_free(struct event *e)
{
    free(e->capture_nodes);
    object_free(e);
}

void event_release(struct event *e)
{
    if (__atomic_sub_fetch(&e->references, 1, __ATOMIC_ACQ_REL) == 0 && e->object.kind == KIND_EVENT_ENDING)
        event_free(e);
}

void events_drop_all(struct context *c)
{
    for (size_t i = 0; i < SIM_QUEUE_ENTRIES; i++) {
        for (struct event *e; (e = c->marks[i]);) {
            e->end_ns = e->recorded_ns;
            e->state = EVENT_DONE;
            event_unmark(e);
            e->context = e->home;
            e->context_id = e->home_id;
        }
    }
}

/* The context of an event, if it still is the one that made the event. */
struct context *event_context(const struct event *e)
{
    struct context *c = object_get(e->context, KIND_CONTEXT);
    return c && c->active && c->id == e->context_id ? c : NULL;
}

bool event_move(struct event *e, struct context *c)
{
    if (e->context == c) return true;
    if (context_home(c) != e->home) return false;
    struct context *before = e->context;
    pthread_mutex_lock(&before->lock);
    event_unmark(e);
    e->context = c;
    e->context_id = c->id;
    e->superseded = 0;
    pthread_mutex_unlock(&before->lock);
    return true;
}

void event_stamp(struct context *c, struct event *e, uint64_t last, struct depend effects,
                 uint64_t recorded_ns)
{
    event_unmark(e);
    e->recorded_ns = recorded_ns;
    e->number = last;
    e->effects = effects;
    e->state = EVENT_POSTED;
    const struct sim_queue *q = &process.sim.node->queue[c->queue];
    if (last == 0 || __atomic_load_n(&q->done, __ATOMIC_ACQUIRE) >= last) {
        e->end_ns = e->recorded_ns;
        e->state = EVENT_DONE;
        return;
    }
    struct event **place = &c->marks[(last - 1) % SIM_QUEUE_ENTRIES];
    e->next_mark = *place;
    *place = e;
    e->marked = true;
}

/* Requires the context's lock. Take the event's time from the engine if the entry is complete. */
static bool event_take_time(struct event *e)
{
    if (e->state == EVENT_POSTED) {
        uint64_t end;
        if (!queue_done(&process.sim, e->context->queue, e->number - 1, &end)) return false;
        e->end_ns = end > e->recorded_ns ? end : e->recorded_ns;
        e->state = EVENT_DONE;
        event_unmark(e);
    }
    return e->state == EVENT_DONE || e->state == EVENT_NEVER;
}

bool event_effects_done(const struct event *e)
{
    return e->state == EVENT_NEVER || depend_is_met(&e->effects);
}

bool event_done(struct event *e)
{
    pthread_mutex_lock(&e->context->lock);
    bool done = event_take_time(e) && event_effects_done(e);
    pthread_mutex_unlock(&e->context->lock);
    return done;
}

CUresult event_wait(struct event *e)
{
    struct context *c = e->context;
    pthread_mutex_lock(&c->lock);
    while (e->state == EVENT_PENDING)
        pthread_cond_wait(&c->changed, &c->lock);
    if (e->state == EVENT_POSTED && !event_take_time(e)) {
        uint64_t number = e->number - 1, generation = e->generation;
        pthread_mutex_unlock(&c->lock);
        queue_wait(&process.sim, c->queue, number);
        pthread_mutex_lock(&c->lock);
        if (e->generation == generation) event_take_time(e);
    }
    while (!event_effects_done(e))
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return context_health(c);
}

void event_supersede(struct event *e, uint64_t last)
{
    if (last > e->superseded) e->superseded = last;
}

void event_wait_for(struct event *e, uint64_t generation)
{
    struct context *c = e->context;
    pthread_mutex_lock(&c->lock);
    while (e->state == EVENT_PENDING && e->generation == generation)
        pthread_cond_wait(&c->changed, &c->lock);
    bool newest = generation == 0 || e->generation == generation;
    uint64_t last = e->superseded;
    pthread_mutex_unlock(&c->lock);
    if (newest)
        (void)event_wait(e);
    else if (last)
        queue_wait(&process.sim, c->queue, last - 1);
}

CUresult event_get(CUevent handle, struct event **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct event *e = object_get(handle, KIND_EVENT);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    if (!event_context(e)) { /* a green context may have been destroyed, with what was recorded in it */
        e->context = e->home;
        e->context_id = e->home_id;
        if (!event_context(e)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *out = e;
    return context_health(e->context);
}
