/*
 * Handlers of atomic operations, in memory of any space: lanes one after the other, each atomic with regard to
 * all other threads. `width` are the bytes of the address register, `shape` those of an element.
 */
#include "sim/ptx/atomic.h"

#include "sim/ptx/half_float.h"
#include "sim/ptx/lane_address.h"

enum { ADD, MIN, MAX, AND, OR, XOR, EXCH, CAS, INC, DEC, OPERATIONS };

int atomic_named(const char *name, size_t length)
{
    static const char *const names[OPERATIONS] = {"add", "min",  "max", "and", "or",
                                                  "xor", "exch", "cas", "inc", "dec"};
    for (int i = 0; i < OPERATIONS; i++) {
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0) return i;
    }
    return -1;
}

static f32 f32_of(u64 v)
{
    u32 bits = (u32)v;
    f32 f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static u64 bits_f32(f32 f)
{
    u32 bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static u64 atomic_result_float(u32 what, enum type t, u64 old, u64 b)
{
    if (t == T_F64) {
        f64 x, y;
        memcpy(&x, &old, sizeof x);
        memcpy(&y, &b, sizeof y);
        x += y;
        memcpy(&old, &x, sizeof old);
        return old;
    }
    f32 x = t == T_F32 ? f32_of(old) : t == T_F16 ? half_to_float((u16)old) : bfloat_to_float((u16)old);
    f32 y = t == T_F32 ? f32_of(b) : t == T_F16 ? half_to_float((u16)b) : bfloat_to_float((u16)b);
    f32 r = what == ADD ? x + y : what == MIN ? (y < x || x != x ? y : x) : (y > x || x != x ? y : x);
    return t == T_F32 ? bits_f32(r) : t == T_F16 ? half_from_float(r) : bfloat_from_float(r);
}

static u64 atomic_result(u32 what, enum type t, u64 old, u64 b, u64 c)
{
    if (t == T_F16X2 || t == T_BF16X2) {
        enum type half = t == T_F16X2 ? T_F16 : T_BF16;
        if (what == ADD || what == MIN || what == MAX)
            return atomic_result_float(what, half, old & 0xffff, b & 0xffff) |
                   atomic_result_float(what, half, old >> 16, b >> 16) << 16;
    }
    if (type_kind(t) == 'f' && (what == ADD || what == MIN || what == MAX))
        return atomic_result_float(what, t, old, b);
    bool less = t == T_S32 ? (s32)b < (s32)old : t == T_S64 ? (s64)b < (s64)old : b < old;
    switch (what) {
    case ADD:
        return old + b;
    case MIN:
        return less ? b : old;
    case MAX:
        return less || b == old ? old : b;
    case AND:
        return old & b;
    case OR:
        return old | b;
    case XOR:
        return old ^ b;
    case EXCH:
        return b;
    case CAS:
        return old == b ? c : old;
    case INC:
        return old >= b ? 0 : old + 1;
    default:
        return old == 0 || old > b ? b : old - 1;
    }
}

#define ATOMIC(T)                                                                                        \
    {                                                                                                    \
        T *at = (T *)place, old = __atomic_load_n(at, __ATOMIC_ACQUIRE), next;                           \
        do                                                                                               \
            next = (T)atomic_result(o->flag >> 8, o->type, old, b, c);                                   \
        while (!__atomic_compare_exchange_n(at, &old, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)); \
        return old;                                                                                      \
    }

static u64 atomic_apply(const struct op *o, u8 *place, u64 b, u64 c)
{
    switch (o->shape) {
    case 2:
        ATOMIC(u16)
    case 4:
        ATOMIC(u32)
    default:
        ATOMIC(u64)
    }
}

static u64 operand_of_lane(const struct warp *w, uint32_t at, u32 bytes, u32 lane)
{
    const void *p = in(w, at);
    return bytes == 2 ? ((const u16 *)p)[lane] : bytes == 4 ? ((const u32 *)p)[lane] : ((const u64 *)p)[lane];
}

const struct op *op_atomic(struct warp *w, const struct op *o, u32 mask)
{
    u64 address[LANES], old[LANES];
    u8 *place[LANES];
    u32 n = o->shape;
    lane_addresses(w, o, address);
    if (!lane_places(w, o, mask, o->from, address, n, place)) return NULL;
    if (o->from == SPACE_GLOBAL || o->from == SPACE_GENERIC)
        w->block->bytes += 2ull * n * (u64)__builtin_popcount(mask);
    SET_LANES(mask)
    old[i] = atomic_apply(o, place[i], operand_of_lane(w, o->b, n, i), operand_of_lane(w, o->c, n, i));
    void *d = out(w, o->d);
    SET_LANES(mask)
    {
        if (n == 2)
            ((u16 *)d)[i] = (u16)old[i];
        else if (n == 4)
            ((u32 *)d)[i] = (u32)old[i];
        else
            ((u64 *)d)[i] = old[i];
    }
    return o + 1;
}
