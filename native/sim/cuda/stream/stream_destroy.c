/* Destruction of streams: work under way finishes, a capture that they take part in is abandoned. */
#include "sim/cuda/stream/stream_destroy.h"

#include "sim/cuda/graph/capture_nodes.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/stream/stream.h"

/*
 * Work under way finishes; the stream's thread, if it has one, then frees the stream. Requires the context's
 * lock.
 */
void stream_begin_destroy(struct stream *s)
{
    s->object.kind = KIND_STREAM_ENDING;
    s->dying = true;
    if (s->thread_started) {
        pthread_cond_broadcast(&s->context->changed);
    } else {
        stream_unlink(s);
        stream_free(s);
    }
}

void stream_release_all(struct context *c)
{
    pthread_mutex_lock(&c->lock);
    for (struct stream *s = c->streams, *next; s; s = next) {
        next = s->next;
        if (s->capture) capture_abandon(s);
        s->orphaned = c->parent && !s->legacy;
        stream_begin_destroy(s);
    }
    while (c->streams)
        pthread_cond_wait(&c->changed, &c->lock);
    c->legacy = NULL;
    pthread_mutex_unlock(&c->lock);
}
