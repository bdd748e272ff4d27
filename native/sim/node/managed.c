/* Residency of managed memory; managed.h has the theory. */
#include "sim/node/managed.h"

#include "sim/node/device_memory.h"
#include "sim/node/process_gate.h"

#define LINK_BPS 12000000000ull /* of a card whose profile does not state it */

static struct sim_managed *managed_find(struct sim *s, uint32_t device, const struct sim_touch *at)
{
    struct sim_managed *m = at->place < SIM_MANAGED_MAX ? &s->node->managed[device][at->place] : NULL;
    return m && m->state == SIM_SLOT_LIVE && m->generation == at->generation ? m : NULL;
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t link_ns(const struct sim *s, uint32_t device, uint64_t bytes)
{
    uint64_t bps = s->node->device[device].profile.host_bandwidth_bps;
    return (uint64_t)((double)bytes * 1e9 / (double)(bps ? bps : LINK_BPS));
}

static void managed_bring_in(struct sim *s, uint32_t device, struct sim_managed *m, uint64_t bytes)
{
    m->resident_bytes += bytes;
    sim_hold(s, device, m->proc, (int64_t)bytes);
}

static void managed_take_out(struct sim *s, uint32_t device, struct sim_managed *m, uint64_t bytes)
{
    m->resident_bytes -= bytes;
    m->host_bytes += bytes;
    sim_hold(s, device, m->proc, -(int64_t)bytes);
}

static bool is_among_touched(const struct sim_node *n, uint32_t device, const struct sim_managed *m,
                             const struct sim_touch *touch, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (m == &n->managed[device][touch[i].place % SIM_MANAGED_MAX]) return true;
    }
    return false;
}

/* Return true if memory that one process frees is available to the other: not between two MIG instances. */
static bool share_memory(const struct sim_node *n, uint32_t device, uint32_t one, uint32_t other)
{
    const struct sim_proc_device *a = &n->proc[one].device[device], *b = &n->proc[other].device[device];
    return a->mig_used == b->mig_used && (!a->mig_used || a->mig_gi_id == b->mig_gi_id);
}

/*
 * Evict the least recently used until `proc` has `bytes` available, but nothing of `touch`; return the amount
 * evicted.
 */
static uint64_t managed_evict(struct sim *s, uint32_t device, uint32_t proc, uint64_t bytes,
                              const struct sim_touch *touch, uint32_t count)
{
    struct sim_node *n = s->node;
    uint64_t evicted = 0;
    for (uint64_t capacity; (capacity = sim_free_bytes(s, device, proc)) < bytes;) {
        struct sim_managed *oldest = NULL;
        for (uint32_t i = 0; i < n->managed_high[device]; i++) {
            struct sim_managed *m = &n->managed[device][i];
            if (m->state != SIM_SLOT_LIVE || m->resident_bytes == 0 ||
                is_among_touched(n, device, m, touch, count) || !share_memory(n, device, m->proc, proc))
                continue;
            if (!oldest || m->used_ns < oldest->used_ns) oldest = m;
        }
        if (!oldest) break;
        uint64_t some = least_of(oldest->resident_bytes, bytes - capacity);
        managed_take_out(s, device, oldest, some);
        evicted += some;
    }
    return evicted;
}

bool managed_evict_for_process(struct sim *s, uint32_t device, uint32_t proc, uint64_t bytes)
{
    (void)managed_evict(s, device, proc, bytes, NULL, 0);
    return sim_free_bytes(s, device, proc) >= bytes;
}

bool managed_evict_for(struct sim *s, uint32_t device, uint64_t bytes)
{
    return managed_evict_for_process(s, device, (uint32_t)s->slot, bytes);
}

void managed_evict_process(struct sim *s, uint32_t device, uint32_t slot)
{
    for (uint32_t i = 0; i < s->node->managed_high[device]; i++) {
        struct sim_managed *m = &s->node->managed[device][i];
        if (m->state == SIM_SLOT_LIVE && m->proc == slot) managed_take_out(s, device, m, m->resident_bytes);
    }
}

bool managed_add(struct sim *s, uint32_t device, uint64_t bytes, struct sim_touch *out)
{
    struct sim_node *n = s->node;
    sim_gate(s);
    sim_lock_device(s, device);
    uint32_t i = 0;
    while (i < n->managed_high[device] && n->managed[device][i].state == SIM_SLOT_LIVE)
        i++;
    if (i < SIM_MANAGED_MAX) {
        struct sim_managed *m = &n->managed[device][i];
        if (i == n->managed_high[device]) n->managed_high[device]++;
        *m = (struct sim_managed){.state = SIM_SLOT_LIVE,
                                  .generation = m->generation + 1,
                                  .proc = (uint32_t)s->slot,
                                  .size_bytes = bytes,
                                  .used_ns = sim_now()};
        *out = (struct sim_touch){.place = (uint16_t)i, .generation = m->generation, .bytes = bytes};
        managed_bring_in(s, device, m, least_of(bytes, sim_free_bytes(s, device, m->proc)));
    }
    sim_unlock_device(s, device);
    return i < SIM_MANAGED_MAX;
}

void managed_remove(struct sim *s, uint32_t device, const struct sim_touch *at)
{
    sim_gate(s);
    sim_lock_device(s, device);
    struct sim_managed *m = managed_find(s, device, at);
    if (m) {
        sim_hold(s, device, m->proc, -(int64_t)m->resident_bytes);
        m->state = SIM_SLOT_FREE;
    }
    sim_unlock_device(s, device);
}

void managed_written(struct sim *s, uint32_t device, const struct sim_touch *at)
{
    sim_lock_device(s, device);
    struct sim_managed *m = managed_find(s, device, at);
    if (m) m->host_bytes = least_of(m->host_bytes + at->bytes, m->size_bytes - m->resident_bytes);
    sim_unlock_device(s, device);
}

/* Bytes that are to be brought in and are not on the card yet. */
static uint64_t missing_bytes(const struct sim_managed *m, uint64_t bytes)
{
    uint64_t wanted = least_of(bytes, m->size_bytes);
    return wanted > m->resident_bytes ? wanted - m->resident_bytes : 0;
}

static uint64_t estimate_touch(struct sim *s, uint32_t device, const struct sim_touch *touch, uint32_t count)
{
    uint64_t moved = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct sim_managed *m = managed_find(s, device, &touch[i]);
        if (m)
            moved += touch[i].to_host ? least_of(touch[i].bytes, m->resident_bytes)
                                      : least_of(missing_bytes(m, touch[i].bytes), m->host_bytes);
    }
    return link_ns(s, device, moved);
}

uint64_t managed_touch(struct sim *s, uint32_t device, const struct sim_touch *touch, uint32_t count,
                       uint64_t now_ns)
{
    if (now_ns == MANAGED_ESTIMATE) return estimate_touch(s, device, touch, count);
    uint64_t moved = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct sim_managed *m = managed_find(s, device, &touch[i]);
        if (!m) continue;
        if (touch[i].to_host) {
            uint64_t bytes = least_of(touch[i].bytes, m->resident_bytes);
            managed_take_out(s, device, m, bytes);
            moved += bytes;
            continue;
        }
        m->used_ns = now_ns;
        uint64_t missing = missing_bytes(m, touch[i].bytes);
        if (missing == 0) continue;
        moved += managed_evict(s, device, m->proc, missing, touch, count);
        uint64_t placed = least_of(missing, sim_free_bytes(s, device, m->proc));
        if (placed < missing) {
            /*
             * More than the card can hold: with least recently used eviction, all of it passes through each
             * time.
             */
            uint64_t wanted = least_of(touch[i].bytes, m->size_bytes);
            moved += m->host_bytes ? 2 * wanted : missing - placed;
            m->host_bytes = m->size_bytes - m->resident_bytes - placed;
        } else {
            uint64_t coming = least_of(missing, m->host_bytes);
            moved += coming;
            m->host_bytes -= coming;
        }
        managed_bring_in(s, device, m, placed);
    }
    return link_ns(s, device, moved);
}

void managed_drop_process(struct sim *s, uint32_t device, uint32_t slot)
{
    for (uint32_t i = 0; i < s->node->managed_high[device]; i++) {
        struct sim_managed *m = &s->node->managed[device][i];
        if (m->state == SIM_SLOT_LIVE && m->proc == slot) m->state = SIM_SLOT_FREE;
    }
}
