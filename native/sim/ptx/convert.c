/*
 * Conversions between all types: lanes are widened to 64-bit integers or to f64 without loss, and narrowed
 * again. Frequent conversions have a loop of their own.
 */
#include "sim/ptx/convert.h"

#include "sim/ptx/half_float.h"
#include "sim/ptx/lanes.h"

#include <fenv.h>
#include <float.h>
#include <math.h>

static int fenv_mode(char mode)
{
    return mode == 'z' ? FE_TOWARDZERO : mode == 'm' ? FE_DOWNWARD : mode == 'p' ? FE_UPWARD : FE_TONEAREST;
}

/* Set the rounding mode of the next operation, which is executed at once: no turn ends between them. */
const struct op *op_round(struct warp *w, const struct op *o, u32 mask)
{
    fesetround(fenv_mode((char)o->immediate));
    const struct op *next = o[1].run(w, o + 1, mask);
    fesetround(FE_TONEAREST);
    return next;
}

union wide { /* lanes during a conversion */
    s64 integer[LANES];
    f64 real[LANES];
};

static void lanes_fetch(const struct warp *w, const struct op *o, u64 *raw)
{
    const void *from = in(w, o->a);
    switch (o->shape) {
    case 2:
        EACH_LANE raw[i] = ((const u16 *)from)[i];
        return;
    case 4:
        EACH_LANE raw[i] = ((const u32 *)from)[i];
        return;
    default:
        EACH_LANE raw[i] = ((const u64 *)from)[i];
        return;
    }
}

static f32 as_f32(u64 raw)
{
    u32 bits = (u32)raw;
    f32 v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Return true if the widened lanes are floating. */
static bool lanes_widen(enum type from, const u64 *raw, union wide *t, u32 flag)
{
    switch (from) {
    case T_U8:
    case T_B8:
        EACH_LANE t->integer[i] = (u8)raw[i];
        return false;
    case T_S8:
        EACH_LANE t->integer[i] = (s8)(u8)raw[i];
        return false;
    case T_U16:
    case T_B16:
        EACH_LANE t->integer[i] = (u16)raw[i];
        return false;
    case T_S16:
        EACH_LANE t->integer[i] = (s16)(u16)raw[i];
        return false;
    case T_U32:
    case T_B32:
        EACH_LANE t->integer[i] = (u32)raw[i];
        return false;
    case T_S32:
        EACH_LANE t->integer[i] = (s32)(u32)raw[i];
        return false;
    case T_F16:
        EACH_LANE t->real[i] = (f64)half_to_float((u16)raw[i]);
        return true;
    case T_BF16:
        EACH_LANE t->real[i] = (f64)bfloat_to_float((u16)raw[i]);
        return true;
    case T_F32:
    case T_TF32:
        EACH_LANE
        {
            f32 v = as_f32(raw[i]);
            t->real[i] = (f64)(flag & CONVERT_FLUSH && fabsf(v) < FLT_MIN ? copysignf(0, v) : v);
        }
        return true;
    case T_F64:
        memcpy(t->real, raw, sizeof t->real);
        return true;
    default:
        memcpy(t->integer, raw, sizeof t->integer);
        return false;
    }
}

static f64 round_to_integral(f64 v, char mode)
{
    switch (mode) {
    case 'z':
        return trunc(v);
    case 'm':
        return floor(v);
    case 'p':
        return ceil(v);
    default:
        return nearbyint(v);
    }
}

/* A value beyond the type becomes its nearest limit; a NaN becomes 0. */
static u64 to_integer(f64 v, enum type to, char mode)
{
    u32 bits = 8 * type_bytes(to);
    bool is_signed = type_is_signed(to);
    f64 least = is_signed ? -ldexp(1, (int)bits - 1) : 0,
        beyond = ldexp(1, is_signed ? (int)bits - 1 : (int)bits);
    u64 top = is_signed ? (1ull << (bits - 1)) - 1 : bits == 64 ? UINT64_MAX : (1ull << bits) - 1;
    if (v != v) return 0;
    v = round_to_integral(v, mode);
    if (v >= beyond) return top;
    if (v <= least) return is_signed ? (u64)0 - (1ull << (bits - 1)) : 0;
    return is_signed ? (u64)(s64)v : v >= 0x1p63 ? (u64)(v - 0x1p63) + (1ull << 63) : (u64)v;
}

static u64 clamp_integer(s64 v, enum type from, enum type to)
{
    u32 bits = 8 * type_bytes(to);
    bool huge = from == T_U64 && v < 0;
    if (type_is_signed(to)) {
        s64 top = (s64)((1ull << (bits - 1)) - 1), low = -top - 1;
        return (u64)(huge || v > top ? top : v < low ? low : v);
    }
    u64 top = bits == 64 ? UINT64_MAX : (1ull << bits) - 1;
    if (huge) return bits == 64 ? (u64)v : top;
    return v < 0 ? 0 : (u64)v > top ? top : (u64)v;
}

static u64 to_float(f64 v, enum type to, u32 flag, char mode)
{
    if (flag & CONVERT_WHOLE) v = round_to_integral(v, mode);
    if (flag & CONVERT_SATURATE) v = v > 0 ? (v < 1 ? v : 1) : 0;
    if (flag & CONVERT_RELU && v < 0) v = 0;
    switch (to) {
    case T_F16:
        return narrow_from_double(v, 5, 10, mode);
    case T_BF16:
        return narrow_from_double(v, 8, 7, mode);
    case T_TF32:
        return (u64)narrow_from_double(v, 8, 10, mode) << 13;
    case T_F64: {
        u64 bits;
        memcpy(&bits, &v, sizeof bits);
        return bits;
    }
    default: {
        f32 f = (f32)v;
        u32 bits;
        if (flag & CONVERT_FLUSH && fabsf(f) < FLT_MIN) f = copysignf(0, f);
        memcpy(&bits, &f, sizeof bits);
        return bits;
    }
    }
}

static u64 from_integer(s64 v, enum type from, enum type to, char mode)
{
    if (to == T_F32) {
        f32 f = from == T_U64 ? (f32)(u64)v : (f32)v;
        u32 bits;
        memcpy(&bits, &f, sizeof bits);
        return bits;
    }
    return to_float(from == T_U64 ? (f64)(u64)v : (f64)v, to, 0, mode);
}

/* Store in a register that may be wider than the type. */
static void lanes_store(const struct warp *w, const struct op *o, const u64 *t, u32 mask)
{
    void *d = out(w, o->d);
    enum type to = o->type;
    SET_LANES(mask)
    {
        u64 v = t[i];
        if (to == T_S8) v = (u64)(s64)(s8)(u8)v;
        if (to == T_S16) v = (u64)(s64)(s16)(u16)v;
        if (to == T_S32) v = (u64)(s64)(s32)(u32)v;
        if (to == T_U8 || to == T_B8) v = (u8)v;
        if (to == T_U16 || to == T_B16) v = (u16)v;
        if (to == T_U32 || to == T_B32) v = (u32)v;
        if (o->width == 2)
            ((u16 *)d)[i] = (u16)v;
        else if (o->width == 4)
            ((u32 *)d)[i] = (u32)v;
        else
            ((u64 *)d)[i] = v;
    }
}

const struct op *op_convert(struct warp *w, const struct op *o, u32 mask)
{
    u64 raw[LANES], t[LANES];
    union wide v;
    enum type from = o->from, to = o->type;
    char mode = (char)o->immediate;
    lanes_fetch(w, o, raw);
    bool real = lanes_widen(from, raw, &v, o->flag), to_real = type_kind(to) == 'f';
    if (mode != 'n') fesetround(fenv_mode(mode));
    if (real && to_real) {
        EACH_LANE t[i] = to_float(v.real[i], to, o->flag, mode);
    } else if (real) {
        EACH_LANE t[i] = to_integer(v.real[i], to, mode);
    } else if (to_real) {
        EACH_LANE t[i] = from_integer(v.integer[i], from, to, mode);
    } else if (o->flag & CONVERT_SATURATE) {
        EACH_LANE t[i] = clamp_integer(v.integer[i], from, to);
    } else {
        memcpy(t, v.integer, sizeof t);
    }
    if (mode != 'n') fesetround(FE_TONEAREST);
    lanes_store(w, o, t, mask);
    return o + 1;
}

/* Two f32 to a pair: the first becomes the upper half. */
const struct op *op_narrow_pair(struct warp *w, const struct op *o, u32 mask)
{
    const f32 *a = in(w, o->a), *b = in(w, o->b);
    u32 *d = out(w, o->d), t[LANES];
    enum type to = o->type == T_F16X2 ? T_F16 : T_BF16;
    EACH_LANE t[i] = (u32)to_float((f64)a[i], to, o->flag, (char)o->immediate) << 16 |
                     (u32)to_float((f64)b[i], to, o->flag, (char)o->immediate);
    keep(d, t, sizeof *d, mask);
    return o + 1;
}
