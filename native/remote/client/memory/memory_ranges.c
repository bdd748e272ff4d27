#include "remote/client/memory/memory_ranges.h"

#include "remote/client/context/context_stack.h"
#include "remote/wire/span.h"

static struct {
    pthread_rwlock_t lock;
    struct cb_range *range; /* by address */
    size_t count, capacity;
    uint64_t last_id;
} ranges = {.lock = PTHREAD_RWLOCK_INITIALIZER};

/* Number of ranges that begin at or before the address. */
static size_t ranges_up_to(uint64_t address)
{
    size_t low = 0, high = ranges.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges.range[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool ranges_grow(void)
{
    if (ranges.count < ranges.capacity) return true;
    size_t capacity = ranges.capacity ? 2 * ranges.capacity : 256;
    struct cb_range *more = realloc(ranges.range, capacity * sizeof *more);
    if (!more) return false;
    ranges.range = more;
    ranges.capacity = capacity;
    return true;
}

bool cb_range_add(uint64_t address, uint64_t bytes, enum cb_memory memory, unsigned int flags)
{
    const struct cb_context *c = cb_context_current();
    if (!cb_memory_is_host(memory) && !cb_span_holds(address, bytes))
        return false; /* it may be another session's */
    struct cb_range r = {.address = address, .bytes = bytes, .memory = memory, .flags = flags};
    if (c) {
        r.context = (CUcontext)(uintptr_t)c->id;
        r.device = c->device;
    }
    pthread_rwlock_wrlock(&ranges.lock);
    bool ok = ranges_grow();
    if (ok) {
        size_t at = ranges_up_to(address);
        memmove(&ranges.range[at + 1], &ranges.range[at], (ranges.count - at) * sizeof *ranges.range);
        r.id = ++ranges.last_id;
        ranges.range[at] = r;
        ranges.count++;
    }
    pthread_rwlock_unlock(&ranges.lock);
    return ok;
}

bool cb_range_drop(uint64_t address, struct cb_range *out)
{
    pthread_rwlock_wrlock(&ranges.lock);
    size_t at = ranges_up_to(address);
    bool found = at && ranges.range[at - 1].address == address;
    if (found) {
        if (out) *out = ranges.range[at - 1];
        memmove(&ranges.range[at - 1], &ranges.range[at], (ranges.count - at) * sizeof *ranges.range);
        ranges.count--;
    }
    pthread_rwlock_unlock(&ranges.lock);
    return found;
}

bool cb_range_of(uint64_t address, struct cb_range *out)
{
    pthread_rwlock_rdlock(&ranges.lock);
    size_t at = ranges_up_to(address);
    bool found = at && address - ranges.range[at - 1].address < ranges.range[at - 1].bytes;
    if (found) *out = ranges.range[at - 1];
    pthread_rwlock_unlock(&ranges.lock);
    return found;
}

void cb_range_mark_mirrored(uint64_t address)
{
    pthread_rwlock_wrlock(&ranges.lock);
    size_t at = ranges_up_to(address);
    if (at && ranges.range[at - 1].address == address) ranges.range[at - 1].mirrored = true;
    pthread_rwlock_unlock(&ranges.lock);
}

bool cb_range_within(uint64_t address, uint64_t bytes, struct cb_range *out)
{
    pthread_rwlock_rdlock(&ranges.lock);
    size_t at = ranges_up_to(address + bytes - 1);
    bool found = at && ranges.range[at - 1].address + ranges.range[at - 1].bytes > address;
    if (found) *out = ranges.range[at - 1];
    pthread_rwlock_unlock(&ranges.lock);
    return found;
}

bool cb_range_of_context(CUcontext context, struct cb_range *out)
{
    bool found = false;
    pthread_rwlock_rdlock(&ranges.lock);
    for (size_t i = 0; i < ranges.count && !found; i++) {
        found = ranges.range[i].context == context && !cb_memory_is_host(ranges.range[i].memory);
        if (found) *out = ranges.range[i];
    }
    pthread_rwlock_unlock(&ranges.lock);
    return found;
}

bool cb_range_is_device(uint64_t address, uint64_t bytes)
{
    struct cb_range r;
    return cb_range_of(address, &r) && (r.mirrored || !cb_memory_is_host(r.memory)) &&
           bytes <= r.bytes - (address - r.address);
}

bool cb_range_is_here(uint64_t address)
{
    struct cb_range r;
    return !cb_range_of(address, &r) || (cb_memory_is_host(r.memory) && !r.mirrored);
}
