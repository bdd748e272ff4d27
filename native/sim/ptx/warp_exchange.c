/* Handlers of operations that exchange values between the lanes of a warp. */
#include "sim/ptx/warp_exchange.h"

#include "sim/ptx/lanes.h"
#include "sim/ptx/warp.h"

/* The lanes that take part: the members named by the mask (operand `e`) converge first. */
#define GATHER                                             \
    u32 members = ((const u32 *)in(w, o->e))[FIRST(mask)]; \
    mask = warp_gather(w, o, mask, members);               \
    if (!mask) return NULL

/*
 * a the value, b the lane or distance, c the clamp and segment; list_count 1: `d2` in list receives whether the
 * source lane existed.
 */
const struct op *op_shuffle(struct warp *w, const struct op *o, u32 mask)
{
    GATHER;
    const u32 *a = in(w, o->a), *b = in(w, o->b), *c = in(w, o->c);
    u32 t[LANES] = {0}, *d = out(w, o->d), there = 0;
    SET_LANES(mask)
    {
        s32 distance = (s32)(b[i] & 31), clamp = (s32)(c[i] & 31), segment = (s32)(c[i] >> 8 & 31),
            lane = (s32)i, j;
        s32 most = (lane & segment) | (clamp & ~segment), least = lane & segment;
        bool ok;
        switch (o->flag) {
        case SHUFFLE_UP:
            j = lane - distance;
            ok = j >= most;
            break;
        case SHUFFLE_DOWN:
            j = lane + distance;
            ok = j <= most;
            break;
        case SHUFFLE_BUTTERFLY:
            j = lane ^ distance;
            ok = j <= most;
            break;
        default:
            j = least | (distance & ~segment);
            ok = j <= most;
        }
        if (!ok) j = lane;
        if (ok) there |= 1u << i;
        t[i] = a[j & 31];
    }
    keep(d, t, 4, mask);
    if (o->list_count) keep_predicate(w, o->second_place, there, mask);
    return o + 1;
}

/* a the predicate, second 1: inverted. */
const struct op *op_vote(struct warp *w, const struct op *o, u32 mask)
{
    GATHER;
    u32 p = predicate(w, o->a), r;
    if (o->second) p = ~p;
    p &= mask;
    switch (o->flag) {
    case VOTE_BALLOT: {
        u32 t[LANES];
        EACH_LANE t[i] = p;
        keep(out(w, o->d), t, 4, mask);
        return o + 1;
    }
    case VOTE_ALL:
        r = p == mask;
        break;
    case VOTE_ANY:
        r = p != 0;
        break;
    default:
        r = p == mask || p == 0;
    }
    keep_predicate(w, o->d, r ? FULL : 0, mask);
    return o + 1;
}

/* flag 1: all; list_count 1: the predicate of match.all. */
const struct op *op_match(struct warp *w, const struct op *o, u32 mask)
{
    GATHER;
    u32 t[LANES] = {0};
    bool alike = true;
    SET_LANES(mask)
    {
        u32 outer = i;
        for (u32 k = 0; k < LANES; k++) {
            if (!(mask >> k & 1)) continue;
            bool same = o->shape == 8 ? ((const u64 *)in(w, o->a))[outer] == ((const u64 *)in(w, o->a))[k]
                                      : ((const u32 *)in(w, o->a))[outer] == ((const u32 *)in(w, o->a))[k];
            if (same) t[outer] |= 1u << k;
            alike = alike && same;
        }
        if (o->flag && !alike) break;
    }
    if (o->flag) {
        EACH_LANE t[i] = alike ? mask : 0;
        if (o->list_count) keep_predicate(w, o->second_place, alike ? FULL : 0, mask);
    }
    keep(out(w, o->d), t, 4, mask);
    return o + 1;
}

const struct op *op_active(struct warp *w, const struct op *o, u32 mask)
{
    u32 t[LANES];
    EACH_LANE t[i] = mask;
    keep(out(w, o->d), t, 4, mask);
    return o + 1;
}

const struct op *op_reduce(struct warp *w, const struct op *o, u32 mask)
{
    GATHER;
    const u32 *a = in(w, o->a);
    u32 r = a[FIRST(mask)], t[LANES];
    bool is_signed = o->type == T_S32;
    for (u32 rest = mask & (mask - 1); rest; rest &= rest - 1) {
        u32 v = a[FIRST(rest)];
        bool less = is_signed ? (s32)v < (s32)r : v < r;
        switch (o->flag) {
        case REDUCE_ADD:
            r += v;
            break;
        case REDUCE_MIN:
            r = less ? v : r;
            break;
        case REDUCE_MAX:
            r = less ? r : v;
            break;
        case REDUCE_AND:
            r &= v;
            break;
        case REDUCE_OR:
            r |= v;
            break;
        default:
            r ^= v;
        }
    }
    EACH_LANE t[i] = r;
    keep(out(w, o->d), t, 4, mask);
    return o + 1;
}

const struct op *op_warp_sync(struct warp *w, const struct op *o, u32 mask)
{
    GATHER;
    return o + 1;
}

/* Elect one of the members, the first; its number goes to all, the predicate is true for it only. */
const struct op *op_elect(struct warp *w, const struct op *o, u32 mask)
{
    GATHER;
    u32 first = FIRST(mask), t[LANES];
    EACH_LANE t[i] = first;
    keep(out(w, o->d), t, 4, mask);
    keep_predicate(w, o->second_place, 1u << first, mask);
    return o + 1;
}
