/*
 * Translation of lanes' addresses to memory of this process: each space has its bounds; global memory is
 * checked by a callback.
 */
#include "sim/ptx/lane_address.h"
#include "sim/ptx/warp.h"

void lane_addresses(const struct warp *w, const struct op *o, u64 *address)
{
    u64 plus = (u64)o->immediate;
    if (o->flag & ACCESS_FRAME) plus += w->running->frame->local_base;
    if (o->flag & ACCESS_NO_BASE) {
        EACH_LANE address[i] = plus;
    } else if (o->width == 8) {
        const u64 *a = in(w, o->a);
        EACH_LANE address[i] = a[i] + plus;
    } else {
        const u32 *a = in(w, o->a);
        EACH_LANE address[i] = (u64)a[i] + plus;
    }
}

static bool access_fault(struct warp *w, const struct op *o, u64 address, u32 bytes)
{
    if (address & (bytes - 1))
        warp_fault(w, o, RUN_MISALIGNED, "misaligned address", address);
    else
        warp_fault(w, o, RUN_ILLEGAL_ADDRESS, "illegal address", address);
    return false;
}

/* The range found last is checked first. */
static bool range_is_accessible(struct warp *w, u64 low, u64 high)
{
    struct span *known = w->block->span;
    for (int i = 0; i < 2; i++) {
        if (low >= known[i].base && high <= known[i].end) {
            if (i) {
                struct span s = known[0];
                known[0] = known[1];
                known[1] = s;
            }
            return true;
        }
    }
    const struct surroundings *around = w->block->run->around;
    struct span s;
    if (!around->memory || !around->memory(around->user, low, &s) || low < s.base || high > s.end)
        return false;
    known[1] = known[0];
    known[0] = s;
    return true;
}

/* The addresses of the active lanes, for the others that of the first; and the range of all. */
struct extent {
    u64 used[LANES], low, high, any;
};

WIDE static void extent_of(struct extent *e, u32 mask, const u64 *address)
{
    u64 first = address[FIRST(mask)], low = first, high = first, any = 0;
    for (int i = 0; i < LANES; i++) {
        u64 at = mask & lane_bit[i] ? address[i] : first;
        e->used[i] = at;
        low = at < low ? at : low;
        high = at > high ? at : high;
        any |= at;
    }
    e->low = low;
    e->high = high;
    e->any = any;
}

static bool global_places(struct warp *w, const struct op *o, u32 mask, const u64 *address, u32 bytes,
                          u8 **place)
{
    struct extent e;
    extent_of(&e, mask, address);
    bool all =
        !(e.any & (bytes - 1)) && e.high + bytes > e.high && range_is_accessible(w, e.low, e.high + bytes);
    if (!all) {
        SET_LANES(mask)
        {
            u64 at = e.used[i];
            if (at & (bytes - 1) || at + bytes < at || !range_is_accessible(w, at, at + bytes))
                return access_fault(w, o, at, bytes);
        }
    }
    EACH_LANE place[i] = (u8 *)e.used[i];
    return true;
}

/*
 * Compute base[at - start] for all lanes, each `apart` behind the one before; false: one is beyond `size` or
 * misaligned.
 */
WIDE static bool lanes_within(u8 *base, u32 apart, u32 start, u32 size, u32 mask, const u64 *address,
                              u32 bytes, u8 **place)
{
    u32 offset[LANES], beyond = 0, most = size - bytes, first = FIRST(mask);
    u64 other = address[first], any = 0;
    if (size < bytes) return false;
    for (int i = 0; i < LANES; i++) {
        u64 at = mask & lane_bit[i] ? address[i] : other;
        any |= at;
        offset[i] = (u32)at - start;
        beyond |= offset[i] > most ? 1u : 0u;
    }
    if (beyond || any & (bytes - 1) || any >> 32) return false;
    for (u32 i = 0; i < LANES; i++)
        place[i] = base + offset[i] + (size_t)apart * (mask & lane_bit[i] ? i : first);
    return true;
}

/* Translate all lanes at once, if they are in one part of shared memory or in their own local memory. */
static bool near_places_of_lanes(const struct warp *w, enum space space, u32 mask, const u64 *address,
                                 u32 bytes, u8 **place)
{
    const struct block *b = w->block;
    u64 part = address[FIRST(mask)] >> SHARED_PART_BITS;
    if (space == SPACE_LOCAL)
        return w->local &&
               lanes_within(w->local, w->local_capacity, 0, w->local_capacity, mask, address, bytes, place);
    return space == SPACE_SHARED && part < SHARED_PARTS &&
           lanes_within(b->shared[part], 0, (u32)part * SHARED_PART, b->shared_size[part], mask, address,
                        bytes, place);
}

/* Shared memory has three parts: the entry's own variables, the module's, and the size given by the launch. */
static u8 *shared_memory_at(const struct block *b, u64 at, u32 bytes)
{
    u64 part = at >> SHARED_PART_BITS, offset = at & (SHARED_PART - 1);
    return part < SHARED_PARTS && offset + bytes <= b->shared_size[part] ? b->shared[part] + offset : NULL;
}

/* Translate one lane's address in a space with fixed bounds; NULL: outside. */
static u8 *bounded_memory_at(struct warp *w, enum space space, u64 at, u32 lane, u32 bytes)
{
    const struct block *b = w->block;
    if (at & (bytes - 1)) return NULL;
    switch (space) {
    case SPACE_SHARED:
        return shared_memory_at(b, at, bytes);
    case SPACE_LOCAL:
        return at + bytes <= w->local_capacity && at + bytes > at
                   ? w->local + (size_t)lane * w->local_capacity + at
                   : NULL;
    case SPACE_PARAM:
        return at + bytes <= b->run->entry->parameter_bytes && at + bytes > at ? (u8 *)b->run->parameters + at
                                                                               : NULL;
    default:
        return NULL;
    }
}

bool lane_places(struct warp *w, const struct op *o, u32 mask, enum space space, const u64 *address,
                 u32 bytes, u8 **place)
{
    static const enum space behind[4] = {SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM};
    if (space == SPACE_GLOBAL || space == SPACE_CONST)
        return global_places(w, o, mask, address, bytes, place);
    if (near_places_of_lanes(w, space, mask, address, bytes, place)) return true;
    u64 windows = 0;
    if (space == SPACE_GENERIC) {
        SET_LANES(mask) windows |= WINDOW(address[i]);
        if (!windows) return global_places(w, o, mask, address, bytes, place);
    }
    u32 first = FIRST(mask);
    SET_LANES(mask)
    {
        enum space s = space;
        u64 at = address[i];
        if (space == SPACE_GENERIC && WINDOW(at) < 4) {
            s = behind[WINDOW(at)];
            at &= WINDOW_MASK;
        }
        if (s == SPACE_GLOBAL) {
            if (at & (bytes - 1) || at + bytes < at || !range_is_accessible(w, at, at + bytes))
                return access_fault(w, o, at, bytes);
            place[i] = (u8 *)at;
        } else if (!(place[i] = bounded_memory_at(w, s, at, i, bytes))) {
            return access_fault(w, o, address[i], bytes);
        }
    }
    for (u32 i = 0; i < LANES; i++)
        place[i] = mask >> i & 1 ? place[i] : place[first];
    return true;
}
