#include "remote/worker/pending_copies.h"

#include "remote/worker/outbox.h"
#include "remote/worker/pinned.h"

#include <pthread.h>
#include <sys/mman.h>

#define OPEN_MAX   (1u << 30)
#define PART_BYTES (1u << 20)
#define PAGE_BYTES 4096u
#define LOCKED_MAX \
    (256u << 20)   /* most pages that the driver copies to directly; beyond it copies are slower */
#define CLASSES 15 /* size classes of such buffers: 4 KiB to CB_FETCH_MAX */

struct capacity { /* filled by copies, perhaps repeatedly */
    struct cb_frame frame;
    size_t bytes;
    unsigned int references;
    struct cb_pinned pages; /* pages that contain all of this; no data: in ordinary memory */
    struct capacity *next;  /* another unused buffer */
    uint8_t data[] __attribute__((aligned(64)));
};
_Static_assert(sizeof(struct capacity) <= PAGE_BYTES, "a page of its own goes before the data");

struct filled { /* by one copy */
    struct capacity *capacity;
    CUevent done;
    bool kept, sending;
    struct filled *next;
};

struct keeper {
    void *owner; /* a graph, or an executable one */
    struct capacity *capacity;
    struct keeper *next;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t sent;
    struct filled *first;
    struct keeper *keepers;
    struct capacity *idle[CLASSES];
    size_t locked; /* bytes of locked pages */
    size_t open;
    uint32_t count;
} drain = {.lock = PTHREAD_MUTEX_INITIALIZER, .sent = PTHREAD_COND_INITIALIZER};

static struct capacity *buffer_of(uint8_t *data)
{
    return (struct capacity *)(void *)(data - offsetof(struct capacity, data));
}

/* ---- buffers ---- */

static unsigned int size_class(size_t bytes)
{
    unsigned int c = 0;
    while ((size_t)PAGE_BYTES << c < bytes)
        c++;
    return c;
}

/*
 * Take an unused buffer; NULL: none, after others were freed to make room, as far as possible. Requires the
 * lock.
 */
static struct capacity *buffer_take_unused(unsigned int class, size_t whole)
{
    struct capacity *r = drain.idle[class];
    if (r) drain.idle[class] = r->next;
    for (unsigned int c = CLASSES; !r && c-- && drain.locked + whole > LOCKED_MAX;) {
        for (struct capacity *other; drain.locked + whole > LOCKED_MAX && (other = drain.idle[c]);) {
            drain.idle[c] = other->next;
            drain.locked -= other->pages.bytes;
            cb_pinned_end(&other->pages);
        }
    }
    return r;
}

static struct capacity *buffer_make(size_t bytes, size_t whole, bool locked)
{
    struct cb_pinned pages = {0};
    struct capacity *r = NULL;
    if (locked && cb_pinned_make(&pages, whole)) r = (struct capacity *)(void *)pages.data;
    if (!r) r = aligned_alloc(_Alignof(struct capacity), (sizeof *r + bytes + 63) & ~(size_t)63);
    if (r) r->pages = pages;
    return r;
}

uint8_t *cb_pending_copy_buffer(size_t bytes)
{
    if (bytes > CB_ASYNC_COPY_MAX) return NULL;
    unsigned int class = size_class(bytes);
    size_t whole = PAGE_BYTES + ((size_t)PAGE_BYTES << class);
    pthread_mutex_lock(&drain.lock);
    bool fits = drain.open <= OPEN_MAX - bytes;
    struct capacity *r = fits ? buffer_take_unused(class, whole) : NULL;
    bool locked = fits && !r && drain.locked + whole <= LOCKED_MAX;
    pthread_mutex_unlock(&drain.lock);
    if (!fits) return NULL;
    if (r)
        cb_pinned_renew(&r->pages);
    else
        r = buffer_make(bytes, whole, locked); /* drained by the one thread that reads commands */
    if (!r) return NULL;
    r->bytes = bytes;
    r->references = 1;
    pthread_mutex_lock(&drain.lock);
    drain.open += bytes;
    if (locked) drain.locked += r->pages.bytes;
    pthread_mutex_unlock(&drain.lock);
    return r->data;
}

/* Requires the lock. */
static void buffer_release(struct capacity *r)
{
    if (--r->references) return;
    drain.open -= r->bytes;
    if (!r->pages.data) {
        free(r);
        return;
    }
    struct capacity **idle = &drain.idle[size_class(r->bytes)];
    r->next = *idle;
    *idle = r;
}

/* ---- copies that fill buffers ---- */

void cb_pending_copy_free(uint8_t *data)
{
    pthread_mutex_lock(&drain.lock);
    buffer_release(buffer_of(data));
    pthread_mutex_unlock(&drain.lock);
}

static void data_send_part(const struct capacity *r, uint16_t flags, CUresult result, uint64_t at,
                           size_t bytes)
{
    cb_outbox_notice(&r->frame, CB_DATA, flags, result, &at, 1, r->data + at, bytes);
}

/* Send all data; a failure is reported without data. */
static void data_send(const struct capacity *r, bool kept, CUresult result)
{
    uint16_t last = kept ? CB_FRAME_KEPT : 0;
    if (result != CUDA_SUCCESS) {
        data_send_part(r, last, result, 0, 0);
        return;
    }
    for (size_t at = 0; at < r->bytes; at += PART_BYTES) {
        size_t bytes = r->bytes - at < PART_BYTES ? r->bytes - at : PART_BYTES;
        data_send_part(r, at + bytes < r->bytes ? CB_FRAME_PART : last, result, at, bytes);
    }
}

static CUresult buffer_fill(struct capacity *r, CUstream stream, bool kept)
{
    struct filled *f = calloc(1, sizeof *f);
    CUresult result =
        f ? CB_CALL(cuEventCreate)(&f->done, CU_EVENT_DISABLE_TIMING) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        result = CB_CALL(cuEventRecord)(f->done, stream);
        if (result != CUDA_SUCCESS) CB_CALL(cuEventDestroy_v2)(f->done);
    }
    if (result != CUDA_SUCCESS) {
        free(f);
        return result;
    }
    f->capacity = r;
    f->kept = kept;
    pthread_mutex_lock(&drain.lock);
    r->references += kept;
    struct filled **at = &drain.first;
    while (*at)
        at = &(*at)->next;
    *at = f;
    __atomic_fetch_add(&drain.count, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&drain.lock);
    return CUDA_SUCCESS;
}

CUresult cb_pending_copy_add(const struct cb_frame *of, uint8_t *data, CUstream stream)
{
    struct capacity *r = buffer_of(data);
    r->frame = *of;
    return buffer_fill(r, stream, false);
}

static bool graph_keep(void *owner, struct capacity *r)
{
    struct keeper *k = malloc(sizeof *k);
    if (!k) return false;
    *k = (struct keeper){owner, r, drain.keepers};
    drain.keepers = k;
    return true;
}

CUresult cb_pending_copy_keep(const struct cb_frame *of, uint8_t *data, CUgraph graph)
{
    struct capacity *r = buffer_of(data);
    r->frame = *of;
    pthread_mutex_lock(&drain.lock);
    bool kept = graph_keep(graph, r);
    pthread_mutex_unlock(&drain.lock);
    return kept ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void cb_pending_copy_inherit(void *to, void *from)
{
    pthread_mutex_lock(&drain.lock);
    for (struct keeper *k = drain.keepers; k; k = k->next) {
        if (k->owner == from && graph_keep(to, k->capacity)) k->capacity->references++;
    }
    pthread_mutex_unlock(&drain.lock);
}

void cb_pending_copy_owner_destroyed(void *owner)
{
    pthread_mutex_lock(&drain.lock);
    for (struct keeper **at = &drain.keepers; *at;) {
        struct keeper *k = *at;
        if (k->owner != owner) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        if (k->capacity->references == 1)
            data_send_part(k->capacity, 0, CUDA_SUCCESS, 0, 0); /* no more data will follow */
        buffer_release(k->capacity);
        free(k);
    }
    pthread_mutex_unlock(&drain.lock);
}

CUresult cb_pending_copy_graph_launched(void *owner, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    for (struct keeper *k = drain.keepers; k && result == CUDA_SUCCESS; k = k->next) {
        if (k->owner == owner) result = buffer_fill(k->capacity, stream, true);
    }
    return result;
}

/* A buffer whose copy is done and that no thread is sending; NULL: none. Requires the lock. */
static struct filled *filled_find_done(CUresult *result)
{
    for (struct filled *f = drain.first; f; f = f->next) {
        if (f->sending) continue;
        *result = CB_CALL(cuEventQuery)(f->done);
        if (*result != CUDA_ERROR_NOT_READY) return f;
    }
    return NULL;
}

static bool other_thread_sends(void)
{
    for (struct filled *f = drain.first; f; f = f->next) {
        if (f->sending) return true;
    }
    return false;
}

static void filled_end(struct filled *f)
{
    struct filled **at = &drain.first;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    __atomic_fetch_sub(&drain.count, 1, __ATOMIC_RELEASE);
    if (f->kept && f->capacity->references == 1) data_send_part(f->capacity, 0, CUDA_SUCCESS, 0, 0);
    buffer_release(f->capacity);
    free(f);
    pthread_cond_broadcast(&drain.sent);
}

void cb_pending_copies_send(void)
{
    CUresult result;
    if (!__atomic_load_n(&drain.count, __ATOMIC_ACQUIRE)) return;
    pthread_mutex_lock(&drain.lock);
    for (struct filled *f; (f = filled_find_done(&result));) {
        f->sending = true;
        pthread_mutex_unlock(&drain.lock);
        data_send(f->capacity, f->kept, result);
        CB_CALL(cuEventDestroy_v2)(f->done);
        pthread_mutex_lock(&drain.lock);
        filled_end(f);
    }
    while (other_thread_sends())
        pthread_cond_wait(&drain.sent, &drain.lock);
    pthread_mutex_unlock(&drain.lock);
}
