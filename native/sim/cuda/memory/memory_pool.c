/*
 * Memory pools, and stream-ordered allocation and release.
 *
 * A pool reserves memory of the card in ranges of the rounded size (sim_charge_bytes), keeps freed ranges up to
 * its release threshold, and reuses a kept range for the next request of the same rounded size. Reserved bytes
 * are charged to the card; used bytes are what the program holds. Memory beyond the threshold is released when
 * it is freed, the rest when the card is full.
 */
#include "sim/cuda/memory/memory_pool.h"

#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/process/object.h"
#include "sim/node/state.h"

struct kept { /* a reserved range that is not in use */
    struct range *range;
    struct kept *next;
};

static struct pool *pools;
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;

struct pool *pool_new(struct device *d, bool is_default)
{
    struct pool *p = object_new(KIND_POOL, sizeof *p);
    if (!p) return NULL;
    p->device = d;
    p->is_default = is_default;
    p->access = 1u << d->ordinal;
    for (int i = 0; i < 4; i++)
        p->reuse[i] = 1;
    pthread_mutex_lock(&pools_lock);
    p->next = pools;
    pools = p;
    pthread_mutex_unlock(&pools_lock);
    return p;
}

CUresult pool_device_default(struct device *d, struct pool **out)
{
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&making);
    if (!d->default_pool) d->default_pool = pool_new(d, true);
    if (!d->current_pool) d->current_pool = d->default_pool;
    pthread_mutex_unlock(&making);
    *out = d->default_pool;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Requires the lock. */
static void used_add(struct pool *p, uint64_t bytes)
{
    p->used += bytes;
    if (p->used > p->used_high) p->used_high = p->used;
}

CUresult pool_take(struct context *c, struct pool *p, uint64_t bytes, struct range **out)
{
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    uint64_t charge = sim_charge_bytes(bytes);
    pthread_mutex_lock(&pools_lock);
    for (struct kept **k = &p->kept; *k; k = &(*k)->next) {
        struct range *r = (*k)->range;
        if (r->charged != charge) continue;
        struct kept *empty = *k;
        *k = empty->next;
        free(empty);
        p->cached -= charge;
        memory_lock();
        r->size = bytes;
        r->pending_free = r->freeing = false;
        r->context = context_home(c);
        memory_unlock();
        used_add(p, charge);
        pthread_mutex_unlock(&pools_lock);
        *out = r;
        return CUDA_SUCCESS;
    }
    bool over = p->max_size && p->reserved + charge > p->max_size;
    if (over) {
        pthread_mutex_unlock(&pools_lock);
        pool_trim(p, p->max_size > charge ? p->max_size - charge : 0);
        pthread_mutex_lock(&pools_lock);
        over = p->reserved + charge > p->max_size;
    }
    /* before the card is asked, so that two concurrent requests cannot both pass */
    if (!over) p->reserved += charge;
    pthread_mutex_unlock(&pools_lock);
    if (over) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = memory_take(c, p->device, bytes, MEMORY_POOL, out);
    pthread_mutex_lock(&pools_lock);
    if (result == CUDA_SUCCESS) {
        (*out)->pool_access = &p->access;
        (*out)->pool = p;
        if (p->reserved > p->reserved_high) p->reserved_high = p->reserved;
        used_add(p, charge);
    } else {
        p->reserved -= charge;
    }
    pthread_mutex_unlock(&pools_lock);
    return result;
}

/* Keep a freed range in its pool. */
static void range_keep(struct range *r)
{
    struct pool *p = r->pool;
    struct kept *k = malloc(sizeof *k);
    memory_lock();
    r->pending_free = true; /* must not be accessed until it is allocated again */
    memory_unlock();
    pthread_mutex_lock(&pools_lock);
    p->used -= r->charged;
    if (k) {
        *k = (struct kept){r, p->kept};
        p->kept = k;
        p->cached += r->charged;
    } else {
        p->reserved -= r->charged;
    }
    pthread_mutex_unlock(&pools_lock);
    if (!k) memory_drop(r);
}

void pool_drop(struct range *r)
{
    struct pool *p = r->pool;
    if (!object_get(p, KIND_POOL)) {
        memory_drop(r);
        return;
    }
    range_keep(r);
    pool_trim(p, p->release_threshold);
}

bool pool_trim(struct pool *p, uint64_t keep_bytes)
{
    for (bool any = false;; any = true) {
        pthread_mutex_lock(&pools_lock);
        struct kept *k = p->reserved > keep_bytes ? p->kept : NULL;
        if (k) {
            p->kept = k->next;
            p->cached -= k->range->charged;
            p->reserved -= k->range->charged;
        }
        pthread_mutex_unlock(&pools_lock);
        if (!k) return any;
        memory_drop(k->range);
        free(k);
    }
}

bool pools_trim_device(struct device *d)
{
    bool any = false;
    if (!__atomic_load_n(&pools, __ATOMIC_ACQUIRE)) return false;
    pthread_mutex_lock(&pools_lock);
    struct pool *p = pools;
    pthread_mutex_unlock(&pools_lock);
    for (; p; p = p->next) {
        if (p->device == d && p->cached && pool_trim(p, p->used)) any = true;
    }
    return any;
}

static void range_leave_pool(struct range *r, void *argument)
{
    if (r->pool != argument) return;
    r->pool = NULL;
    r->pool_access = NULL;
}

void pool_unlink(struct pool *p)
{
    pthread_mutex_lock(&pools_lock);
    for (struct pool **q = &pools; *q; q = &(*q)->next) {
        if (*q != p) continue;
        *q = p->next;
        break;
    }
    pthread_mutex_unlock(&pools_lock);
    memory_lock();
    ranges_visit(range_leave_pool, p);
    memory_unlock();
}

void pool_reset_high(struct pool *p, bool reserved)
{
    pthread_mutex_lock(&pools_lock);
    if (reserved)
        p->reserved_high = p->reserved;
    else
        p->used_high = p->used;
    pthread_mutex_unlock(&pools_lock);
}
