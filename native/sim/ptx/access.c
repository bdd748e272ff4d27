/*
 * Handlers of loads, stores and address conversions. `list` are the registers (several for a vector), `shape`
 * the bytes of a register, `type` that of an element in memory, `from` the space.
 */
#include "sim/ptx/access.h"

#include "sim/ptx/lane_address.h"

/* Inactive lanes read what the first active lane reads, and keep their values. */
#define LOAD_LOOP(M, R)                                   \
    {                                                     \
        R kept[LANES], *to = mask == FULL ? d : kept;     \
        for (int i = 0; i < LANES; i++)                   \
            to[i] = (R)(*(const M *)(place[i] + offset)); \
        if (mask != FULL) keep(d, kept, sizeof(R), mask); \
        return;                                           \
    }
#define LOAD_INTO(M, S)       \
    switch (width) {          \
    case 2:                   \
        LOAD_LOOP(M, S##16_t) \
    case 4:                   \
        LOAD_LOOP(M, S##32_t) \
    default:                  \
        LOAD_LOOP(M, S##64_t) \
    }

static void load(void *d, enum type t, u32 width, u8 *const *place, u32 offset, u32 mask)
{
    switch (t) {
    case T_S8:
        LOAD_INTO(s8, int)
    case T_S16:
        LOAD_INTO(s16, int)
    case T_S32:
        LOAD_INTO(s32, int)
    default:
        break;
    }
    switch (type_bytes(t)) {
    case 1:
        LOAD_INTO(u8, uint)
    case 2:
        LOAD_INTO(u16, uint)
    case 4:
        LOAD_INTO(u32, uint)
    default:
        LOAD_INTO(u64, uint)
    }
}

static void store(const void *s, u32 bytes, u32 width, u8 *const *place, u32 offset, u32 mask)
{
    if (bytes == 4 && width == 4) {
        SET_LANES(mask) * (u32 *)(place[i] + offset) = ((const u32 *)s)[i];
    } else if (bytes == 8 && width == 8) {
        SET_LANES(mask) * (u64 *)(place[i] + offset) = ((const u64 *)s)[i];
    } else {
        SET_LANES(mask)
        memcpy(place[i] + offset, (const u8 *)s + (size_t)i * width, bytes); /* the low bytes */
    }
}

static void bytes_count(struct warp *w, enum space space, u32 mask, u32 bytes)
{
    if (space == SPACE_GLOBAL || space == SPACE_GENERIC)
        w->block->bytes += (u64)__builtin_popcount(mask) * bytes;
}

const struct op *op_load(struct warp *w, const struct op *o, u32 mask)
{
    u64 address[LANES];
    u8 *place[LANES];
    u32 each = type_bytes(o->type), bytes = each * o->list_count;
    lane_addresses(w, o, address);
    if (!lane_places(w, o, mask, o->from, address, bytes, place)) return NULL;
    bytes_count(w, o->from, mask, bytes);
    const uint32_t *list = w->running->frame->function->list + o->list;
    for (u32 k = 0; k < o->list_count; k++)
        load(out(w, list[k]), o->type, o->shape, place, k * each, mask);
    return o + 1;
}

const struct op *op_store(struct warp *w, const struct op *o, u32 mask)
{
    u64 address[LANES];
    u8 *place[LANES];
    u32 each = type_bytes(o->type), bytes = each * o->list_count;
    lane_addresses(w, o, address);
    if (!lane_places(w, o, mask, o->from, address, bytes, place)) return NULL;
    bytes_count(w, o->from, mask, bytes);
    const uint32_t *list = w->running->frame->function->list + o->list;
    for (u32 k = 0; k < o->list_count; k++)
        store(in(w, list[k]), each, o->shape, place, k * each, mask);
    return o + 1;
}

/*
 * cp.async: `a` the address in shared memory, `b` that in global memory (of `shape` bytes of a register),
 * `type` the number of bytes, `c` the number of source bytes (the rest is zero) if list_count is 1. Performed
 * at once: a wait for it finds it done.
 */
const struct op *op_copy_async(struct warp *w, const struct op *o, u32 mask)
{
    u64 to[LANES], from[LANES];
    u8 *target[LANES], *source[LANES];
    u32 bytes = o->type;
    struct op second = *o;
    lane_addresses(w, o, to);
    second.a = o->b;
    second.width = o->shape;
    second.immediate = o->second;
    second.flag = 0;
    lane_addresses(w, &second, from);
    if (!lane_places(w, o, mask, SPACE_SHARED, to, bytes, target)) return NULL;
    if (!lane_places(w, o, mask, SPACE_GLOBAL, from, bytes, source)) return NULL;
    bytes_count(w, SPACE_GLOBAL, mask, bytes);
    const u32 *size = o->list_count ? in(w, o->c) : NULL;
    SET_LANES(mask)
    {
        u32 there = size && size[i] < bytes ? size[i] : bytes;
        memcpy(target[i], source[i], there);
        memset(target[i] + there, 0, bytes - there);
    }
    return o + 1;
}

/* Address of a variable among the locals of the frame; `flag` is added for a generic address. */
const struct op *op_frame_address(struct warp *w, const struct op *o, u32 mask)
{
    u64 v = w->running->frame->local_base + (u64)o->immediate, t[LANES];
    u32 n[LANES];
    EACH_LANE t[i] = v;
    EACH_LANE n[i] = (u32)v;
    if (o->width == 8)
        keep(out(w, o->d), t, 8, mask);
    else
        keep(out(w, o->d), n, 4, mask);
    return o + 1;
}

/* isspacep: `flag` is the space. */
const struct op *op_is_space(struct warp *w, const struct op *o, u32 mask)
{
    const u64 *a = in(w, o->a);
    static const u8 window[] = {
        [SPACE_SHARED] = 1, [SPACE_LOCAL] = 2, [SPACE_PARAM] = 3, [SPACE_GLOBAL] = 0, [SPACE_CONST] = 0};
    u8 t[LANES];
    EACH_LANE t[i] = WINDOW(a[i]) == window[o->flag];
    keep_predicate(w, o->d, o->flag == SPACE_CONST ? 0 : gather_bits(t), mask);
    return o + 1;
}

/* cvta: convert between an address of a space and a generic one. A register of 4 bytes holds the lower half. */
static const struct op *shift_window(struct warp *w, const struct op *o, u32 mask, u64 plus)
{
    if (o->width == 8) {
        const u64 *a = in(w, o->a);
        u64 t[LANES];
        EACH_LANE t[i] = a[i] + plus;
        keep(out(w, o->d), t, 8, mask);
    } else {
        keep(out(w, o->d), in(w, o->a), 4, mask);
    }
    return o + 1;
}

const struct op *op_window_add(struct warp *w, const struct op *o, u32 mask)
{
    return shift_window(w, o, mask, (u64)o->immediate);
}

const struct op *op_window_sub(struct warp *w, const struct op *o, u32 mask)
{
    return shift_window(w, o, mask, (u64)0 - (u64)o->immediate);
}

/* mov of a vector: `list` are the elements, `shape` the bytes of each. */
const struct op *op_pack(struct warp *w, const struct op *o, u32 mask)
{
    u8 t[LANES * 8], *d = out(w, o->d);
    const uint32_t *list = w->running->frame->function->list + o->list;
    for (u32 k = 0; k < o->list_count; k++) {
        const u8 *part = in(w, list[k]);
        for (u32 i = 0; i < LANES; i++)
            memcpy(t + i * o->width + k * o->shape, part + i * o->from, o->shape);
    }
    keep(d, t, o->width, mask);
    return o + 1;
}

const struct op *op_unpack(struct warp *w, const struct op *o, u32 mask)
{
    const uint32_t *list = w->running->frame->function->list + o->list;
    u8 whole[LANES * 8];
    memcpy(whole, in(w, o->a), (size_t)LANES * o->width);
    for (u32 k = 0; k < o->list_count; k++) {
        u8 t[LANES * 8] = {0};
        for (u32 i = 0; i < LANES; i++)
            memcpy(t + i * o->from, whole + i * o->width + k * o->shape, o->shape);
        keep(out(w, list[k]), t, o->from, mask);
    }
    return o + 1;
}
