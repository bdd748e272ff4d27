/* The table of first measurements in the usage page; compute_siblings.h has the theory. */
#include "shim/compute_siblings.h"

#include "shim/compute_limiter.h"
#include "shim/compute_words.h"

#include <stddef.h>

#define SHAPE_PROBES 4u
#define CB_FIRST_NS \
    200000000u /* a first launch that takes longer, or whose process died, no longer blocks others */
#define OWNER_NONE 0u

/* Entry of a shape; NULL: none. Words are written one by one: a torn entry is a wrong guess. */
static struct cb_usage_kernel *shape_first_entry(uint32_t device, uint64_t key, uint64_t *shape)
{
    struct cb_usage_kernel *kernels = cb_compute_kernels();
    *shape = key >> 32 << 32 | (device + 1);
    if (key >> 32 == 0) return NULL; /* a graph */
    return &kernels[cb_key_mix(*shape, 0) >> 40 & (CB_KERNELS_MAX - 1)];
}

static struct cb_usage_kernel *shape_find(uint32_t device, uint64_t key)
{
    uint64_t shape;
    struct cb_usage_kernel *kernels = cb_compute_kernels(), *first = shape_first_entry(device, key, &shape);
    for (uint32_t i = 0; first != NULL && i < SHAPE_PROBES; i++) {
        struct cb_usage_kernel *kernel = &kernels[(uint32_t)(first - kernels + i) & (CB_KERNELS_MAX - 1)];
        if (LOAD(&kernel->shape) == shape) return kernel;
    }
    return NULL;
}

/* The entry of the shape, or else a free one or the oldest one, taken over. */
static struct cb_usage_kernel *shape_take(uint32_t device, uint64_t key)
{
    uint64_t shape;
    struct cb_usage_kernel *found = shape_find(device, key), *kernels = cb_compute_kernels(),
                           *first = shape_first_entry(device, key, &shape), *oldest = NULL;
    if (found != NULL || first == NULL) return found;
    for (uint32_t i = 0; i < SHAPE_PROBES; i++) {
        struct cb_usage_kernel *kernel = &kernels[(uint32_t)(first - kernels + i) & (CB_KERNELS_MAX - 1)];
        if (oldest == NULL || LOAD(&kernel->begun_ns) < LOAD(&oldest->begun_ns)) oldest = kernel;
    }
    STORE(&oldest->mean_ns, 0);
    STORE(&oldest->owner, OWNER_NONE);
    STORE(&oldest->shape, shape);
    return oldest;
}

uint64_t cb_siblings_guess(uint32_t device, uint64_t key)
{
    const struct cb_usage_kernel *kernel = shape_find(device, key);
    return kernel != NULL ? LOAD(&kernel->mean_ns) : 0;
}

uint64_t cb_siblings_cost(uint32_t device, uint64_t key)
{
    uint64_t guess = cb_siblings_guess(device, key);
    return guess != 0 ? guess : CB_UNKNOWN_NS;
}

bool cb_siblings_measure(uint32_t device, uint64_t key, uint64_t now_ns)
{
    struct cb_usage_kernel *kernel = shape_take(device, key);
    if (kernel == NULL || LOAD(&kernel->mean_ns) != 0) return false;
    uint32_t owner = LOAD(&kernel->owner), self = cb_compute_self();
    if (owner != self) {
        if (owner != OWNER_NONE && now_ns < LOAD(&kernel->begun_ns) + CB_FIRST_NS) return true;
        if (!__atomic_compare_exchange_n(&kernel->owner, &owner, self, false, __ATOMIC_RELAXED,
                                         __ATOMIC_RELAXED))
            return true;
    }
    STORE(&kernel->begun_ns, now_ns);
    return false;
}

void cb_siblings_tell(uint32_t device, uint64_t key, uint64_t mean_ns, bool certain)
{
    struct cb_usage_kernel *kernel = mean_ns != 0 ? shape_take(device, key) : shape_find(device, key);
    if (kernel == NULL) return;
    uint64_t known = LOAD(&kernel->mean_ns);
    if (mean_ns != 0 && (certain || known == 0 || mean_ns < known)) STORE(&kernel->mean_ns, mean_ns);
    if (LOAD(&kernel->owner) == cb_compute_self()) STORE(&kernel->owner, OWNER_NONE);
}
