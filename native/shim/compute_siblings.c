/* The table of first measurements in the usage page; compute_siblings.h has the theory. */
#include "shim/compute_siblings.h"

#include "shim/compute_limiter.h"
#include "shim/compute_words.h"

#include <stddef.h>

#define PROBES 4u
#define CB_FIRST_NS \
    200000000u /* a first launch that takes longer holds nobody back, nor one whose process died */
#define NOBODY 0u

/* The entry of a shape; NULL: none. Words are written one by one: a torn entry is a wrong guess. */
static struct cb_usage_kernel *entry_of(uint32_t device, uint64_t key, uint64_t *shape)
{
    struct cb_usage_kernel *kernels = cb_compute_kernels();
    *shape = key >> 32 << 32 | (device + 1);
    if (key >> 32 == 0) return NULL; /* a graph */
    return &kernels[cb_key_mix(*shape, 0) >> 40 & (CB_KERNELS_MAX - 1)];
}

static struct cb_usage_kernel *find(uint32_t device, uint64_t key)
{
    uint64_t shape;
    struct cb_usage_kernel *kernels = cb_compute_kernels(), *first = entry_of(device, key, &shape);
    for (uint32_t i = 0; first != NULL && i < PROBES; i++) {
        struct cb_usage_kernel *kernel = &kernels[(uint32_t)(first - kernels + i) & (CB_KERNELS_MAX - 1)];
        if (LOAD(&kernel->shape) == shape) return kernel;
    }
    return NULL;
}

/* The same, or else a free one or the one that was begun longest ago, made its own. */
static struct cb_usage_kernel *take(uint32_t device, uint64_t key)
{
    uint64_t shape;
    struct cb_usage_kernel *found = find(device, key), *kernels = cb_compute_kernels(),
                           *first = entry_of(device, key, &shape), *oldest = NULL;
    if (found != NULL || first == NULL) return found;
    for (uint32_t i = 0; i < PROBES; i++) {
        struct cb_usage_kernel *kernel = &kernels[(uint32_t)(first - kernels + i) & (CB_KERNELS_MAX - 1)];
        if (oldest == NULL || LOAD(&kernel->begun_ns) < LOAD(&oldest->begun_ns)) oldest = kernel;
    }
    STORE(&oldest->mean_ns, 0);
    STORE(&oldest->owner, NOBODY);
    STORE(&oldest->shape, shape);
    return oldest;
}

uint64_t cb_siblings_guess(uint32_t device, uint64_t key)
{
    const struct cb_usage_kernel *kernel = find(device, key);
    return kernel != NULL ? LOAD(&kernel->mean_ns) : 0;
}

uint64_t cb_siblings_cost(uint32_t device, uint64_t key)
{
    uint64_t guess = cb_siblings_guess(device, key);
    return guess != 0 ? guess : CB_UNKNOWN_NS;
}

bool cb_siblings_measure(uint32_t device, uint64_t key, uint64_t now_ns)
{
    struct cb_usage_kernel *kernel = take(device, key);
    if (kernel == NULL || LOAD(&kernel->mean_ns) != 0) return false;
    uint32_t owner = LOAD(&kernel->owner), self = cb_compute_self();
    if (owner != self) {
        if (owner != NOBODY && now_ns < LOAD(&kernel->begun_ns) + CB_FIRST_NS) return true;
        if (!__atomic_compare_exchange_n(&kernel->owner, &owner, self, false, __ATOMIC_RELAXED,
                                         __ATOMIC_RELAXED))
            return true;
    }
    STORE(&kernel->begun_ns, now_ns);
    return false;
}

void cb_siblings_tell(uint32_t device, uint64_t key, uint64_t mean_ns, bool certain)
{
    struct cb_usage_kernel *kernel = mean_ns != 0 ? take(device, key) : find(device, key);
    if (kernel == NULL) return;
    uint64_t known = LOAD(&kernel->mean_ns);
    if (mean_ns != 0 && (certain || known == 0 || mean_ns < known)) STORE(&kernel->mean_ns, mean_ns);
    if (LOAD(&kernel->owner) == cb_compute_self()) STORE(&kernel->owner, NOBODY);
}
