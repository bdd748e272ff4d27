/*
 * The room of a card, and the books of what processes hold of it.
 */
#include "sim/node/room.h"

#include "sim/node/life.h"

struct sim_gi *sim_instance_of(struct sim_device *d, const struct sim_proc_device *p)
{
    return p->mig_used && p->mig_gi_id < SIM_GI_MAX ? &d->mig.gi[p->mig_gi_id] : NULL;
}

/*
 * The peaks are of what the living hold: on a card the memory of a process is free when its end can be seen, here only
 * when somebody sweeps, and a sibling may have been given it meanwhile. Looking is dear, so only a new peak looks. The
 * caller holds the device's lock: nobody takes anything between the look and the peak.
 */
void sim_see_peaks(struct sim *s, uint32_t device)
{
    struct sim_device *d = &s->node->device[device];
    if (d->used_bytes <= d->used_peak_bytes && d->alloc_bytes <= d->alloc_peak_bytes) return;
    struct sim_remains dead = sim_remains_on(s, device);
    uint64_t used = d->used_bytes - dead.alloc_bytes - dead.context_bytes;
    uint64_t alloc = d->alloc_bytes - dead.alloc_bytes;
    if (used > d->used_peak_bytes) d->used_peak_bytes = used;
    if (alloc > d->alloc_peak_bytes) d->alloc_peak_bytes = alloc;
}

uint64_t sim_room(const struct sim *s, uint32_t device, uint32_t proc)
{
    struct sim_device *d = &s->node->device[device];
    const struct sim_gi *g = sim_instance_of(d, &s->node->proc[proc].device[device]);
    uint64_t total = sim_device_total(d), room = d->used_bytes < total ? total - d->used_bytes : 0;
    uint64_t within = g && g->used_bytes < g->memory_bytes ? g->memory_bytes - g->used_bytes : 0;
    return g && within < room ? within : room;
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
    sim_see_peaks(s, device);
}
