#include "remote/client/range.h"

static struct {
    pthread_rwlock_t lock;
    struct cb_range *range; /* by address */
    size_t count, room;
} ranges = {.lock = PTHREAD_RWLOCK_INITIALIZER};

/* How many begin at or before the address. */
static size_t up_to(uint64_t address)
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

bool cb_range_add(uint64_t address, uint64_t bytes, enum cb_memory memory, unsigned int flags)
{
    pthread_rwlock_wrlock(&ranges.lock);
    bool ok = ranges.count < ranges.room;
    if (!ok) {
        size_t room = ranges.room ? 2 * ranges.room : 256;
        struct cb_range *more = realloc(ranges.range, room * sizeof *more);
        if (more) {
            ranges.range = more;
            ranges.room = room;
            ok = true;
        }
    }
    if (ok) {
        size_t at = up_to(address);
        memmove(&ranges.range[at + 1], &ranges.range[at], (ranges.count - at) * sizeof *ranges.range);
        ranges.range[at] = (struct cb_range){address, bytes, memory, flags};
        ranges.count++;
    }
    pthread_rwlock_unlock(&ranges.lock);
    return ok;
}

bool cb_range_drop(uint64_t address, enum cb_memory memory, struct cb_range *out)
{
    pthread_rwlock_wrlock(&ranges.lock);
    size_t at = up_to(address);
    bool found = at && ranges.range[at - 1].address == address && ranges.range[at - 1].memory == memory;
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
    size_t at = up_to(address);
    bool found = at && address - ranges.range[at - 1].address < ranges.range[at - 1].bytes;
    if (found) *out = ranges.range[at - 1];
    pthread_rwlock_unlock(&ranges.lock);
    return found;
}

bool cb_range_is_device(uint64_t address, uint64_t bytes)
{
    struct cb_range r;
    return cb_range_of(address, &r) && r.memory == CB_MEMORY_DEVICE &&
           bytes <= r.bytes - (address - r.address);
}
