/* Addresses: each space has its bounds, and global memory what its surroundings allow. */
#include "sim/ptx/place.h"
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

static bool illegal(struct warp *w, const struct op *o, u64 address, u32 bytes)
{
    if (address & (bytes - 1))
        warp_fault(w, o, RUN_MISALIGNED, "misaligned address", address);
    else
        warp_fault(w, o, RUN_ILLEGAL_ADDRESS, "illegal address", address);
    return false;
}

/* What was found last is looked at first. */
static bool in_memory(struct warp *w, u64 low, u64 high)
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

static bool global_places(struct warp *w, const struct op *o, u32 mask, const u64 *address, u32 bytes,
                          u8 **place)
{
    u64 first = address[FIRST(mask)], low = first, high = first, any = 0, used[LANES];
    if (mask == FULL) {
        memcpy(used, address, sizeof used);
    } else {
        EACH_LANE used[i] = mask & lane_bit[i] ? address[i] : first;
    }
    for (int i = 0; i < LANES; i++) {
        low = used[i] < low ? used[i] : low;
        high = used[i] > high ? used[i] : high;
        any |= used[i];
    }
    bool all = !(any & (bytes - 1)) && high + bytes > high && in_memory(w, low, high + bytes);
    if (!all) {
        SET_LANES(mask)
        {
            if (used[i] & (bytes - 1) || used[i] + bytes < used[i] || !in_memory(w, used[i], used[i] + bytes))
                return illegal(w, o, used[i], bytes);
        }
    }
    EACH_LANE place[i] = (u8 *)used[i];
    return true;
}

/* Shared memory has three parts: the entry's own variables, the module's, and what the launch asked for. */
static u8 *shared_place(const struct block *b, u64 at, u32 bytes)
{
    u64 part = at >> SHARED_PART_BITS, offset = at & (SHARED_PART - 1);
    return part < SHARED_PARTS && offset + bytes <= b->shared_size[part] ? b->shared[part] + offset : NULL;
}

/* One lane's address in a space of its own bounds; NULL: outside. */
static u8 *bounded(struct warp *w, enum space space, u64 at, u32 lane, u32 bytes)
{
    const struct block *b = w->block;
    if (at & (bytes - 1)) return NULL;
    switch (space) {
    case SPACE_SHARED:
        return shared_place(b, at, bytes);
    case SPACE_LOCAL:
        return at + bytes <= w->local_room && at + bytes > at ? w->local + (size_t)lane * w->local_room + at
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
            if (at & (bytes - 1) || at + bytes < at || !in_memory(w, at, at + bytes))
                return illegal(w, o, at, bytes);
            place[i] = (u8 *)at;
        } else if (!(place[i] = bounded(w, s, at, i, bytes))) {
            return illegal(w, o, address[i], bytes);
        }
    }
    for (u32 i = 0; i < LANES; i++)
        place[i] = mask >> i & 1 ? place[i] : place[first];
    return true;
}
