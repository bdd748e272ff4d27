/* Special registers, which the hardware sets. */
#include "sim/ptx/special.h"

#include "sim/ptx/lanes.h"

#include <time.h>

enum special {
    NO_SPECIAL,
    TID,
    NTID = TID + 3,
    CTAID = NTID + 3,
    NCTAID = CTAID + 3,
    LANEID = NCTAID + 3,
    WARPID,
    NWARPID,
    SMID,
    NSMID,
    GRIDID,
    CLOCK,
    CLOCK_HI,
    CLOCK64,
    TIMER,
    TIMER_LO,
    TIMER_HI,
    MASK_EQ,
    MASK_LE,
    MASK_LT,
    MASK_GE,
    MASK_GT,
    TOTAL_SHARED,
    DYNAMIC_SHARED,
    ZERO,
    ONE
};

static const struct {
    const char *name;
    uint32_t which;
} names[] = {
    {"%tid.x", TID},
    {"%tid.y", TID + 1},
    {"%tid.z", TID + 2},
    {"%ntid.x", NTID},
    {"%ntid.y", NTID + 1},
    {"%ntid.z", NTID + 2},
    {"%ctaid.x", CTAID},
    {"%ctaid.y", CTAID + 1},
    {"%ctaid.z", CTAID + 2},
    {"%nctaid.x", NCTAID},
    {"%nctaid.y", NCTAID + 1},
    {"%nctaid.z", NCTAID + 2},
    {"%laneid", LANEID},
    {"%warpid", WARPID},
    {"%nwarpid", NWARPID},
    {"%smid", SMID},
    {"%nsmid", NSMID},
    {"%gridid", GRIDID},
    {"%clock", CLOCK},
    {"%clock_hi", CLOCK_HI},
    {"%clock64", CLOCK64},
    {"%globaltimer", TIMER},
    {"%globaltimer_lo", TIMER_LO},
    {"%globaltimer_hi", TIMER_HI},
    {"%lanemask_eq", MASK_EQ},
    {"%lanemask_le", MASK_LE},
    {"%lanemask_lt", MASK_LT},
    {"%lanemask_ge", MASK_GE},
    {"%lanemask_gt", MASK_GT},
    {"%total_smem_size", TOTAL_SHARED},
    {"%aggr_smem_size", TOTAL_SHARED},
    {"%dynamic_smem_size", DYNAMIC_SHARED},
    {"%clusterid.x", CTAID},
    {"%clusterid.y", CTAID + 1},
    {"%clusterid.z", CTAID + 2},
    {"%nclusterid.x", NCTAID},
    {"%nclusterid.y", NCTAID + 1},
    {"%nclusterid.z", NCTAID + 2},
    {"%cluster_ctaid.x", ZERO},
    {"%cluster_ctaid.y", ZERO},
    {"%cluster_ctaid.z", ZERO},
    {"%cluster_nctaid.x", ONE},
    {"%cluster_nctaid.y", ONE},
    {"%cluster_nctaid.z", ONE},
    {"%cluster_ctarank", ZERO},
    {"%cluster_nctarank", ONE},
    {"%envreg0", ZERO},
    {"%reserved_smem_offset_begin", ZERO},
    {"%reserved_smem_offset_end", ZERO},
    {"%reserved_smem_offset_cap", ZERO},
};

uint32_t special_named(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i].name) == length && memcmp(names[i].name, name, length) == 0)
            return names[i].which;
    }
    return NO_SPECIAL;
}

uint32_t special_bytes(uint32_t which)
{
    return which == CLOCK64 || which == TIMER || which == GRIDID ? 8 : 4;
}

static u64 clock_read_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}

/* Registers with the same value in all lanes. */
static u64 value_of_warp(const struct warp *w, uint32_t which)
{
    const struct block *b = w->block;
    const struct launch_shape *s = &b->run->shape;
    if (which >= NTID && which < NTID + 3) return s->block[which - NTID];
    if (which >= CTAID && which < CTAID + 3) return b->ctaid[which - CTAID];
    if (which >= NCTAID && which < NCTAID + 3) return s->grid[which - NCTAID];
    switch (which) {
    case WARPID:
        return w->index;
    case NWARPID:
        return b->warp_count;
    case SMID:
        return s->sm_count ? b->number % s->sm_count : 0;
    case NSMID:
        return s->sm_count;
    case GRIDID:
        return b->run->number;
    case CLOCK:
    case CLOCK64:
        return clock_read_ns(CLOCK_MONOTONIC);
    case CLOCK_HI:
        return clock_read_ns(CLOCK_MONOTONIC) >> 32;
    case TIMER:
    case TIMER_LO:
        return clock_read_ns(CLOCK_REALTIME);
    case TIMER_HI:
        return clock_read_ns(CLOCK_REALTIME) >> 32;
    case TOTAL_SHARED:
        return b->shared_bytes;
    case DYNAMIC_SHARED:
        return s->dynamic_shared_bytes;
    default:
        return which == ONE;
    }
}

static u32 value_of_lane(const struct warp *w, uint32_t which, u32 i)
{
    u32 eq = 1u << i, lt = eq - 1;
    switch (which) {
    case LANEID:
        return i;
    case MASK_EQ:
        return eq;
    case MASK_LE:
        return lt | eq;
    case MASK_LT:
        return lt;
    case MASK_GE:
        return ~lt;
    case MASK_GT:
        return ~(lt | eq);
    default:
        return w->tid[which - TID][i];
    }
}

const struct op *op_special(struct warp *w, const struct op *o, u32 mask)
{
    void *d = out(w, o->d);
    u64 t[LANES];
    if (o->flag < NTID || o->flag == LANEID || (o->flag >= MASK_EQ && o->flag <= MASK_GT)) {
        for (u32 i = 0; i < LANES; i++)
            t[i] = value_of_lane(w, o->flag, i);
    } else {
        u64 v = value_of_warp(w, o->flag);
        EACH_LANE t[i] = v;
    }
    if (o->width == 8) {
        keep(d, t, 8, mask);
    } else if (o->width == 4) {
        u32 n[LANES];
        EACH_LANE n[i] = (u32)t[i];
        keep(d, n, 4, mask);
    } else {
        u16 n[LANES];
        EACH_LANE n[i] = (u16)t[i];
        keep(d, n, 2, mask);
    }
    return o + 1;
}

const struct op *op_nothing(struct warp *w, const struct op *o, u32 mask)
{
    (void)w;
    (void)mask;
    return o + 1;
}
