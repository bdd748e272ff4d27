/*
 * Linear memory: device, managed, pinned and registered host memory, and access checks of addresses.
 *
 * An allocation is charged to the card before it exists, at its rounded size (sim_charge_bytes), and refunded
 * after it was freed.
 */
#include "sim/cuda/memory/memory.h"

#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/registered_memory.h"
#include "sim/cuda/process/process.h"
#include "sim/node/charge.h"
#include "sim/node/device_build.h"
#include "sim/node/managed.h"
#include "sim/node/state.h"

#include <sys/mman.h>
#include <unistd.h>

static uint32_t block_group(const struct device *d)
{
    return d ? (uint32_t)d->ordinal : SIM_DEVICES_MAX;
}

static bool residency_is_tracked;

static bool no_cache_to_release(struct device *d)
{
    (void)d;
    return false;
}

static bool (*full)(struct device *d) = no_cache_to_release;

void memory_when_full(bool (*give_back)(struct device *d))
{
    full = give_back;
}

CUresult memory_take(struct context *c, struct device *d, uint64_t bytes, enum memory memory,
                     struct range **out)
{
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > 1ull << 46) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t charge = d ? sim_charge_bytes(bytes) : 0;
    struct sim_touch place = {0};
    if (d && memory == MEMORY_MANAGED && managed_add(&process.sim, d->index, charge, &place))
        charge = 0; /* tracked memory is charged where it resides */
    if (charge && !sim_charge(&process.sim, d->index, charge, false)) {
        if (!full(d) || !sim_charge(&process.sim, d->index, charge, false)) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory_lock();
    struct range *r = NULL;
    if (bytes < SIM_SMALL_BYTES) {
        r = small_range_take(block_group(d), bytes, memory);
    } else {
        uint64_t capacity = sim_round_up(bytes, SIM_LARGE_UNIT), base = space_take(capacity, 0, 0);
        if (base) r = range_add(base, bytes, capacity, memory);
        if (base && !r) space_give(base, capacity);
    }
    if (r) {
        r->device = d;
        r->context = context_home(c);
        r->charged = charge;
        r->place = place;
        if (place.bytes) __atomic_store_n(&residency_is_tracked, true, __ATOMIC_RELAXED);
    }
    memory_unlock();
    if (!r) {
        if (place.bytes) managed_remove(&process.sim, d->index, &place);
        if (charge) sim_refund(&process.sim, d->index, charge, false);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = r;
    return CUDA_SUCCESS;
}

bool memory_claim(struct range *r)
{
    memory_lock();
    bool ours = !r->pending_free;
    r->pending_free = true;
    memory_unlock();
    return ours;
}

void memory_drop(struct range *r)
{
    struct device *d = r->device;
    uint64_t charge = r->charged;
    struct sim_touch place = r->place;
    memory_lock();
    if (!small_range_give(r, block_group(d))) {
        if (r->file >= 0) {
            mmap((void *)r->base, r->capacity, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
            close(r->file);
            r->file = -1;
        }
        memory_blank(r->base, r->capacity);
        space_give(r->base, r->capacity);
        range_remove(r);
    }
    memory_unlock();
    if (place.bytes) managed_remove(&process.sim, d->index, &place);
    if (d && charge) sim_refund(&process.sim, d->index, charge, false);
}

bool memory_is_tracked(void)
{
    return __atomic_load_n(&residency_is_tracked, __ATOMIC_RELAXED);
}

uint32_t memory_touch(const struct context *c, uint64_t address, uint64_t bytes, struct sim_touch *out,
                      uint32_t count)
{
    if (!memory_is_tracked() || count >= SIM_TOUCH_MAX) return count;
    memory_lock();
    const struct range *r = range_find(address);
    struct sim_touch place = r && r->device == c->device ? r->place : (struct sim_touch){0};
    memory_unlock();
    if (!place.bytes) return count;
    if (bytes < place.bytes) place.bytes = bytes;
    for (uint32_t i = 0; i < count; i++) {
        if (out[i].place != place.place) continue;
        if (place.bytes > out[i].bytes) out[i].bytes = place.bytes;
        return count;
    }
    out[count] = place;
    return count + 1;
}

void memory_written(const struct context *c, uint64_t address, uint64_t bytes)
{
    struct sim_touch place;
    if (memory_touch(c, address, bytes, &place, 0)) managed_written(&process.sim, c->device->index, &place);
}

static bool range_permits(const struct context *c, const struct range *r)
{
    if (r->pending_free) return false;
    switch (r->memory) {
    case MEMORY_DEVICE:
    case MEMORY_GRAPH:
    case MEMORY_IMPORTED:
        return r->device == c->device || (c->peers >> r->device->ordinal & 1);
    case MEMORY_POOL:
        return r->device == c->device || (r->pool_access && (*r->pool_access >> c->device->ordinal & 1));
    case MEMORY_MAPPED:
        return r->access >> c->device->ordinal & 1;
    case MEMORY_MANAGED:
    case MEMORY_HOST:
    case MEMORY_REGISTERED:
        return true;
    default:
        return false;
    }
}

/*
 * Return true if pages of the program itself are mapped at the address, for a card that uses the host's page
 * tables.
 */
static bool host_pages_are_mapped(const struct context *c, uint64_t address, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = address + bytes;
    unsigned char there[256];

    if (sim_memory_node(c->device->profile) < 0 || space_holds(address) || space_holds(end - 1)) return false;
    for (uint64_t at = address & ~(page - 1); at < end; at += sizeof there * page) {
        uint64_t size = end - at < sizeof there * page ? end - at : sizeof there * page;
        if (mincore((void *)at, size, there) != 0) return false;
    }
    return true;
}

bool memory_allows(struct context *c, uint64_t address, uint64_t bytes)
{
    bool ok = true;
    if (address + bytes < address) return false;
    memory_lock();
    while (ok && bytes) {
        const struct range *r = range_find_any(address);
        if (!r && host_pages_are_mapped(c, address, bytes)) break;
        ok = r && range_permits(c, r);
        if (!ok) break;
        uint64_t here = r->base + r->size - address;
        if (here >= bytes) break;
        ok = r->memory == MEMORY_MAPPED; /* only mappings may continue in the next range */
        address += here;
        bytes -= here;
    }
    memory_unlock();
    return ok;
}

/* Device memory is mapped in whole units, and programs may read a little beyond the requested size. */
static bool range_is_in_units(const struct range *r)
{
    return r->memory == MEMORY_DEVICE || r->memory == MEMORY_POOL;
}

static const struct range *range_near(uint64_t address)
{
    const struct range *r = range_find_any(address);
    if (r) return r;
    r = range_find_any(address / SIM_SMALL_UNIT * SIM_SMALL_UNIT);
    return r && range_is_in_units(r) ? r : NULL;
}

bool memory_span(struct context *c, uint64_t address, uint64_t *base, uint64_t *end)
{
    memory_lock();
    const struct range *r = range_near(address);
    bool ok = r && range_permits(c, r);
    if (ok) {
        *base = r->base;
        *end = r->base + (range_is_in_units(r) ? sim_round_up(r->size, SIM_SMALL_UNIT) : r->size);
    }
    /* Mappings of one reservation may be adjacent. */
    for (; ok && r && r->memory == MEMORY_MAPPED && range_permits(c, r); r = range_find_any(*end))
        *end = r->base + r->size;
    memory_unlock();
    return ok;
}

bool memory_knows(uint64_t address)
{
    memory_lock();
    const struct range *r = range_find_any(address);
    bool known = r && r->memory != MEMORY_RESERVED;
    memory_unlock();
    return known;
}

bool memory_is_ours(uint64_t address)
{
    return space_holds(address);
}
