/* Release of a context's remaining memory when the context is destroyed. */
#include "sim/cuda/memory/context_memory.h"

#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/array.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/memory_pool.h"
#include "sim/cuda/process/object.h"

struct of_context {
    struct context *context;
    struct range **found;
    size_t count, capacity;
};

static void context_range_collect(struct range *r, void *argument)
{
    struct of_context *o = argument;
    /* ranges with another kind of owner are dropped by their owner */
    bool array = object_get(r->owner, KIND_ARRAY) != NULL;
    if (r->context != o->context || (r->owner && !array) || r->pending_free || r->memory == MEMORY_RESERVED ||
        r->memory == MEMORY_MAPPED)
        return;
    if (o->count == o->capacity) {
        size_t capacity = o->capacity ? 2 * o->capacity : 256;
        struct range **more = realloc(o->found, capacity * sizeof *more);
        if (!more) return;
        o->found = more;
        o->capacity = capacity;
    }
    r->pending_free = true; /* makes a concurrent free by another thread fail */
    o->found[o->count++] = r;
}

void memory_drop_context(struct context *c)
{
    struct of_context o = {.context = c};
    pools_trim_device(c->device);
    memory_lock();
    ranges_visit(context_range_collect, &o);
    memory_unlock();
    for (size_t i = 0; i < o.count; i++) {
        if (o.found[i]->owner) array_drop_with_context(o.found[i]->owner);
        if (o.found[i]->pool)
            pool_drop(o.found[i]);
        else
            memory_drop(o.found[i]);
    }
    free(o.found);
}
