/*
 * Arithmetic on 16-bit floating numbers, single and in pairs: computed in f32 without loss, and rounded once.
 */
#include "sim/ptx/alu.h"
#include "sim/ptx/half_float.h"
#include "sim/ptx/lanes.h"

#include <math.h>

static inline f32 min_number(f32 x, f32 y)
{
    return x != x ? y : y != y ? x : x < y ? x : y < x ? y : signbit(x) ? x : y;
}

static inline f32 max_number(f32 x, f32 y)
{
    return x != x ? y : y != y ? x : x > y ? x : y > x ? y : signbit(x) ? y : x;
}

static inline f32 propagate_nan(f32 x, f32 y, f32 r)
{
    return x != x || y != y ? NAN : r;
}

/* Defined once for each format: a pair is two of them in one register. */
#define FORMAT(name, T, T2, load, store, loads, e)                                                          \
    LANEWISE(name, u16, loads(u16), store((f32)(e(load(a[i]), load(b[i]), load(c[i])))))                    \
    static HANDLER(name##x2)                                                                                \
    {                                                                                                       \
        loads(u32);                                                                                         \
        u32 *d = out(w, o->d), t[LANES];                                                                    \
        EACH_LANE                                                                                           \
        {                                                                                                   \
            u32 low = store((f32)(e(load((u16)a[i]), load((u16)b[i]), load((u16)c[i]))));                   \
            u32 high =                                                                                      \
                store((f32)(e(load((u16)(a[i] >> 16)), load((u16)(b[i] >> 16)), load((u16)(c[i] >> 16))))); \
            t[i] = low | high << 16;                                                                        \
        }                                                                                                   \
        keep(d, t, sizeof *d, mask);                                                                        \
        return o + 1;                                                                                       \
    }
/* An operation with fewer operands repeats its first one in the other places. */
#define BOTH(name, e)                                                                    \
    FORMAT(name##_f16, T_F16, T_F16X2, half_to_float, half_from_float, LOAD3S, e)        \
    FORMAT(name##_bf16, T_BF16, T_BF16X2, bfloat_to_float, bfloat_from_float, LOAD3S, e) \
    static op_fn *const name##_run[T_COUNT] = {                                          \
        [T_F16] = name##_f16, [T_F16X2] = name##_f16x2, [T_BF16] = name##_bf16, [T_BF16X2] = name##_bf16x2};
#define LOAD3S(A) LOAD3(A, A, A)

static inline f32 do_add(f32 x, f32 y, f32 z)
{
    (void)z;
    return x + y;
}
static inline f32 do_sub(f32 x, f32 y, f32 z)
{
    (void)z;
    return x - y;
}
static inline f32 do_mul(f32 x, f32 y, f32 z)
{
    (void)z;
    return x * y;
}
/* The sum in f64 is rounded to odd, so that the second rounding is correct. */
static inline f32 do_fma(f32 x, f32 y, f32 z)
{
    f64 product = (f64)x * y, sum = product + z;
    if (sum - sum != 0) return (f32)sum;
    f64 part = sum - product, lost = (product - (sum - part)) + (z - part);
    u64 bits;
    memcpy(&bits, &sum, sizeof bits);
    if (lost != 0 && !(bits & 1)) bits += (lost > 0) == (sum > 0) ? 1 : (u64)-1;
    f32 r;
    memcpy(&sum, &bits, sizeof sum);
    r = (f32)sum;
    if ((f64)r != sum) { /* to odd again, for the intermediate f32 */
        u32 narrow;
        memcpy(&narrow, &r, sizeof narrow);
        if (fabs((f64)r) > fabs(sum)) narrow--;
        narrow |= 1;
        memcpy(&r, &narrow, sizeof r);
    }
    return r;
}
static inline f32 do_fma_relu(f32 x, f32 y, f32 z)
{
    f32 r = do_fma(x, y, z);
    return r > 0 || r != r ? r : 0;
}
static inline f32 do_min(f32 x, f32 y, f32 z)
{
    (void)z;
    return min_number(x, y);
}
static inline f32 do_max(f32 x, f32 y, f32 z)
{
    (void)z;
    return max_number(x, y);
}
static inline f32 do_min_nan(f32 x, f32 y, f32 z)
{
    (void)z;
    return propagate_nan(x, y, min_number(x, y));
}
static inline f32 do_max_nan(f32 x, f32 y, f32 z)
{
    (void)z;
    return propagate_nan(x, y, max_number(x, y));
}
static inline f32 do_neg(f32 x, f32 y, f32 z)
{
    (void)y;
    (void)z;
    return -x;
}
static inline f32 do_abs(f32 x, f32 y, f32 z)
{
    (void)y;
    (void)z;
    return fabsf(x);
}
static inline f32 do_ex2(f32 x, f32 y, f32 z)
{
    (void)y;
    (void)z;
    return exp2f(x);
}
static inline f32 do_tanh(f32 x, f32 y, f32 z)
{
    (void)y;
    (void)z;
    return tanhf(x);
}
static inline f32 do_saturate(f32 x, f32 y, f32 z)
{
    (void)y;
    (void)z;
    return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f;
}
BOTH(add, do_add)
BOTH(sub, do_sub)
BOTH(mul, do_mul)
BOTH(fma, do_fma)
BOTH(fma_relu, do_fma_relu)
BOTH(min, do_min)
BOTH(max, do_max)
BOTH(min_nan, do_min_nan)
BOTH(max_nan, do_max_nan)
BOTH(neg, do_neg)
BOTH(abs, do_abs)
BOTH(ex2, do_ex2)
BOTH(tanh, do_tanh)
BOTH(saturate, do_saturate)

const struct alu alu_half[] = {
    {"add", "ttt", add_run, NULL},
    {"sub", "ttt", sub_run, NULL},
    {"mul", "ttt", mul_run, NULL},
    {"fma", "tttt", fma_run, NULL},
    {"fma.relu", "tttt", fma_relu_run, NULL},
    {"min", "ttt", min_run, NULL},
    {"max", "ttt", max_run, NULL},
    {"min.NaN", "ttt", min_nan_run, NULL},
    {"max.NaN", "ttt", max_nan_run, NULL},
    {"neg", "tt", neg_run, NULL},
    {"abs", "tt", abs_run, NULL},
    {"ex2", "tt", ex2_run, NULL},
    {"tanh", "tt", tanh_run, NULL},
    {"saturate", "tt", saturate_run, NULL},
    {0},
};
