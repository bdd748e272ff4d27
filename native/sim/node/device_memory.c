/* Free memory of a card, and the amounts that processes hold of it. */
#include "sim/node/device_memory.h"

#include "sim/node/liveness.h"

struct sim_gi *sim_instance_of(struct sim_device *d, const struct sim_proc_device *p)
{
    return p->mig_used && p->mig_gi_id < SIM_GI_MAX ? &d->mig.gi[p->mig_gi_id] : NULL;
}

/*
 * Update the peaks. They count living processes only: on a real card the memory of a process is free when its
 * end can be observed, here only after a sweep, and another process may have been given it meanwhile. The
 * liveness check is expensive, so only a new peak makes it. Requires the device's lock: nothing is allocated
 * between the check and the peak.
 */
void sim_update_peaks(struct sim *s, uint32_t device)
{
    struct sim_device *d = &s->node->device[device];
    if (d->used_bytes <= d->used_peak_bytes && d->alloc_bytes <= d->alloc_peak_bytes) return;
    struct sim_remains dead = sim_remains_on(s, device);
    uint64_t used = d->used_bytes - dead.alloc_bytes - dead.context_bytes;
    uint64_t alloc = d->alloc_bytes - dead.alloc_bytes;
    if (used > d->used_peak_bytes) d->used_peak_bytes = used;
    if (alloc > d->alloc_peak_bytes) d->alloc_peak_bytes = alloc;
}

uint64_t sim_free_bytes(const struct sim *s, uint32_t device, uint32_t proc)
{
    struct sim_device *d = &s->node->device[device];
    const struct sim_gi *g = sim_instance_of(d, &s->node->proc[proc].device[device]);
    uint64_t total = sim_device_total(d), capacity = d->used_bytes < total ? total - d->used_bytes : 0;
    uint64_t within = g && g->used_bytes < g->memory_bytes ? g->memory_bytes - g->used_bytes : 0;
    return g && within < capacity ? within : capacity;
}

void sim_hold(struct sim *s, uint32_t device, uint32_t proc, int64_t bytes)
{
    struct sim_device *d = &s->node->device[device];
    struct sim_proc_device *p = &s->node->proc[proc].device[device];
    struct sim_gi *g = sim_instance_of(d, p);
    if (g) g->used_bytes += (uint64_t)bytes;
    p->alloc_bytes += (uint64_t)bytes;
    d->alloc_bytes += (uint64_t)bytes;
    d->used_bytes += (uint64_t)bytes;
    if (bytes <= 0) return;
    if (p->alloc_bytes > p->alloc_peak_bytes) p->alloc_peak_bytes = p->alloc_bytes;
    sim_update_peaks(s, device);
}
