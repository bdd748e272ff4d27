/* Memory of a warp: fragments, frames, and the lanes' local memory. */
#include "sim/ptx/frame.h"

#include "sim/ptx/machine.h"

#include <stdlib.h>
#include <string.h>

struct fragment *fragment_new(struct warp *w)
{
    struct fragment *f = w->spare;
    if (f) {
        w->spare = f->next;
        *f = (struct fragment){.made_next = f->made_next};
    } else if ((f = calloc(1, sizeof *f))) {
        f->made_next = w->made;
        w->made = f;
    }
    return f;
}

void fragment_free(struct warp *w, struct fragment *f)
{
    f->next = w->spare;
    w->spare = f;
}

static bool local_memory_grow(struct warp *w, uint32_t need)
{
    if (need <= w->local_capacity) return true;
    if (need > LOCAL_MAX) return false;
    uint32_t capacity = (need + need / 2 + 255) / 256 * 256;
    if (capacity > LOCAL_MAX) capacity = LOCAL_MAX;
    uint8_t *more = calloc(LANES, capacity);
    if (!more) return false;
    for (uint32_t i = 0; i < LANES && w->local; i++)
        memcpy(more + (size_t)i * capacity, w->local + (size_t)i * w->local_capacity, w->local_capacity);
    free(w->local);
    w->local = more;
    w->local_capacity = capacity;
    return true;
}

static void frame_unlink(struct warp *w, struct frame *f)
{
    if (f->caller) w->block->frame_bytes -= f->function->register_bytes;
    *f->made_link = f->made_next;
    if (f->made_next) f->made_next->made_link = f->made_link;
}

struct frame *frame_new(struct warp *w, const struct routine *f, struct frame *caller, const struct op *call)
{
    struct frame *n = w->spare_frame;
    uint32_t depth = caller ? caller->depth + 1 : 0;
    uint32_t base = caller ? caller->local_base + ((caller->function->local_bytes + 15u) & ~15u) : 0;
    if (depth > DEPTH_MAX || !local_memory_grow(w, base + f->local_bytes)) return NULL;
    if (caller && w->block->frame_bytes + f->register_bytes > FRAMES_MAX) return NULL;
    if (n && n->function == f) {
        w->spare_frame = NULL;
    } else {
        size_t bytes = (sizeof *n + f->register_bytes + 63) / 64 * 64;
        n = aligned_alloc(64, bytes);
        if (!n) return NULL;
        memset(n, 0, bytes);
    }
    if (caller) w->block->frame_bytes += f->register_bytes;
    n->caller = caller;
    n->function = f;
    n->call = call;
    n->depth = depth;
    n->local_base = base;
    n->made_next = w->frames;
    n->made_link = &w->frames;
    if (w->frames) w->frames->made_link = &n->made_next;
    w->frames = n;
    return n;
}

void frame_free(struct warp *w, struct frame *f)
{
    frame_unlink(w, f);
    free(w->spare_frame);
    w->spare_frame = f;
}

static void fragments_free_all(struct warp *w)
{
    while (w->frames)
        frame_free(w, w->frames);
    w->spare = NULL;
    w->fragments = w->running = NULL;
    for (struct fragment *f = w->made; f; f = f->made_next)
        fragment_free(w, f);
}

bool warp_begin(struct warp *w, struct block *b, uint32_t index, const struct routine *f)
{
    const uint32_t *size = b->run->shape.block;
    uint32_t threads = size[0] * size[1] * size[2];
    fragments_free_all(w);
    w->block = b;
    w->index = index;
    w->base[1] = b->run->placed->constant;
    w->begun = 0;
    for (uint32_t i = 0; i < LANES; i++) {
        uint32_t t = index * LANES + i;
        w->tid[0][i] = t % size[0];
        w->tid[1][i] = t / size[0] % size[1];
        w->tid[2][i] = t / size[0] / size[1];
        if (t < threads) w->begun |= 1u << i;
    }
    w->alive = w->begun;
    struct fragment *first = fragment_new(w);
    struct frame *frame = first ? frame_new(w, f, NULL, NULL) : NULL;
    if (!frame) return false;
    first->frame = frame;
    first->at = f->op;
    first->mask = w->begun;
    w->fragments = first;
    return true;
}

void warp_end(struct warp *w)
{
    fragments_free_all(w);
    for (struct fragment *f = w->made, *next; f; f = next) {
        next = f->made_next;
        free(f);
    }
    free(w->spare_frame);
    free(w->local);
    w->made = w->spare = NULL;
    w->spare_frame = NULL;
    w->local = NULL;
    w->local_capacity = 0;
}
