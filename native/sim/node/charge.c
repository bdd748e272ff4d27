/* Charging of device memory to processes. */
#include "sim/node/charge.h"

#include "sim/node/device_memory.h"
#include "sim/node/managed.h"
#include "sim/node/mps.h"
#include "sim/node/process_gate.h"
#include "sim/node/slot.h"

/* Apply an injected allocation failure. Requires the device's lock. */
static bool fails_by_injection(struct sim_device *d)
{
    if (d->faults.alloc_fail_countdown > 0 && --d->faults.alloc_fail_countdown == 0) return true;
    if (d->faults.alloc_fail_permille == 0) return false;
    uint64_t x = (d->alloc_count + d->denied_count + 1) * 0x9E3779B97F4A7C15ull;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    return x % 1000 < d->faults.alloc_fail_permille;
}

/*
 * Return true if the compute instance with which this process began still exists; a destroyed instance stays
 * invalid.
 */
static bool instance_is_valid(const struct sim_device *d, const struct sim_proc_device *p)
{
    if (!p->mig_used) return !d->mig.mode;
    const struct sim_ci *c = &d->mig.ci[(p->mig_line - 1) % SIM_CI_MAX];
    return p->mig_line > 0 && c->used && c->born == p->mig_born;
}

bool sim_instance_is_valid(struct sim *s, uint32_t device)
{
    sim_lock_device(s, device);
    bool has = instance_is_valid(&s->node->device[device], &s->node->proc[s->slot].device[device]);
    sim_unlock_device(s, device);
    return has;
}

static bool charge_once(struct sim *s, uint32_t device, uint64_t bytes, bool context)
{
    struct sim_device *d = &s->node->device[device];
    struct sim_proc_device *p = &s->node->proc[s->slot].device[device];
    struct sim_gi *g = sim_instance_of(d, p);
    if (!instance_is_valid(d, p)) return false;
    if (!sim_mps_allows(&s->node->proc[s->slot], device, bytes)) return false;
    if (bytes > sim_free_bytes(s, device, (uint32_t)s->slot)) return false;
    if (g) g->used_bytes += bytes;
    if (context) {
        p->context_bytes += bytes;
        p->context_count++;
    } else {
        p->alloc_bytes += bytes;
        d->alloc_bytes += bytes;
        d->alloc_count++;
        if (p->alloc_bytes > p->alloc_peak_bytes) p->alloc_peak_bytes = p->alloc_bytes;
    }
    d->used_bytes += bytes;
    sim_update_peaks(s, device);
    return true;
}

bool sim_charge(struct sim *s, uint32_t device, uint64_t bytes, bool context)
{
    struct sim_device *d = &s->node->device[device];
    sim_gate(s);
    sim_lock_device(s, device);
    bool injected = !context && fails_by_injection(d);
    bool ok = !injected && charge_once(s, device, bytes, context);
    sim_unlock_device(s, device);
    if (!ok && !injected) {
        (void)sim_sweep(s, 0);
        sim_lock_device(s, device);
        ok = charge_once(s, device, bytes, context);
        if (!ok && managed_evict_for(s, device, bytes)) ok = charge_once(s, device, bytes, context);
        sim_unlock_device(s, device);
    }
    if (!ok) __atomic_fetch_add(&d->denied_count, 1, __ATOMIC_RELAXED);
    return ok;
}

void sim_refund(struct sim *s, uint32_t device, uint64_t bytes, bool context)
{
    struct sim_device *d = &s->node->device[device];
    struct sim_proc_device *p = &s->node->proc[s->slot].device[device];
    sim_gate(s);
    sim_lock_device(s, device);
    uint64_t *from = context ? &p->context_bytes : &p->alloc_bytes;
    if (bytes > *from) bytes = *from;
    *from -= bytes;
    if (context) {
        if (p->context_count) p->context_count--;
    } else {
        d->alloc_bytes -= bytes < d->alloc_bytes ? bytes : d->alloc_bytes;
        d->free_count++;
    }
    d->used_bytes -= bytes < d->used_bytes ? bytes : d->used_bytes;
    if (p->mig_used && p->mig_gi_id < SIM_GI_MAX) {
        struct sim_gi *g = &d->mig.gi[p->mig_gi_id];
        g->used_bytes -= bytes < g->used_bytes ? bytes : g->used_bytes;
    }
    sim_unlock_device(s, device);
}
