/*
 * Arithmetic on f32 and f64, in the current rounding mode.
 *
 * Operations that PTX calls approximate are computed in full: each result is within the bounds that PTX
 * promises.
 */
#include "sim/ptx/alu.h"
#include "sim/ptx/lanes.h"

#include <float.h>
#include <math.h>

#define X a[i]
#define Y b[i]
#define Z c[i]

/* Flush a subnormal number to zero, keeping its sign. */
static inline f32 flush_subnormal(f32 v)
{
    return fabsf(v) < FLT_MIN ? copysignf(0, v) : v;
}
#define PLAIN(v) (v)

#define ONE(name, f, e64)                                                                   \
    LANEWISE(name##_f32, f32, LOAD1(f32), f(X))                                             \
    LANEWISE(name##_ftz, f32, LOAD1(f32), flush_subnormal(f(flush_subnormal(X))))           \
    LANEWISE(name##_f64, f64, LOAD1(f64), e64(X))                                           \
    static op_fn *const name##_run[T_COUNT] = {[T_F32] = name##_f32, [T_F64] = name##_f64}; \
    static op_fn *const name##_flush[T_COUNT] = {[T_F32] = name##_ftz};
#define TWO(name, f)                                                                                       \
    LANEWISE(name##_f32, f32, LOAD2(f32, f32), f(X, Y))                                                    \
    LANEWISE(name##_ftz, f32, LOAD2(f32, f32), flush_subnormal(f(flush_subnormal(X), flush_subnormal(Y)))) \
    LANEWISE(name##_f64, f64, LOAD2(f64, f64), f(X, Y))                                                    \
    static op_fn *const name##_run[T_COUNT] = {[T_F32] = name##_f32, [T_F64] = name##_f64};                \
    static op_fn *const name##_flush[T_COUNT] = {[T_F32] = name##_ftz};

#define PLUS(x, y)  ((x) + (y))
#define MINUS(x, y) ((x) - (y))
#define TIMES(x, y) ((x) * (y))
#define OVER(x, y)  ((x) / (y))
TWO(add, PLUS)
TWO(sub, MINUS)
TWO(mul, TIMES)
TWO(div, OVER)

/* A number takes precedence over a NaN, and -0 is less than 0. */
#define LEAST(x, y) \
    ((x) != (x) ? (y) : (y) != (y) ? (x) : (x) < (y) ? (x) : (y) < (x) ? (y) : signbit(x) ? (x) : (y))
#define MOST(x, y) \
    ((x) != (x) ? (y) : (y) != (y) ? (x) : (x) > (y) ? (x) : (y) > (x) ? (y) : signbit(x) ? (y) : (x))
#define UNLESS_NAN(x, y, e) ((x) != (x) || (y) != (y) ? NAN : (e))
#define LEAST_NAN(x, y)     UNLESS_NAN(x, y, LEAST(x, y))
#define MOST_NAN(x, y)      UNLESS_NAN(x, y, MOST(x, y))
TWO(min, LEAST)
TWO(max, MOST)
TWO(min_nan, LEAST_NAN)
TWO(max_nan, MOST_NAN)

#define SIGNS(x, y) (signbit(x) != signbit(y) ? -1.0f : 1.0f)
LANEWISE(min_xorsign, f32, LOAD2(f32, f32), copysignf(LEAST(fabsf(X), fabsf(Y)), SIGNS(X, Y)))
LANEWISE(max_xorsign, f32, LOAD2(f32, f32), copysignf(MOST(fabsf(X), fabsf(Y)), SIGNS(X, Y)))
static op_fn *const min_xorsign_run[T_COUNT] = {[T_F32] = min_xorsign};
static op_fn *const max_xorsign_run[T_COUNT] = {[T_F32] = max_xorsign};

/* The sign of a, the magnitude of b. */
LANEWISE(copysign_f32, f32, LOAD2(f32, f32), copysignf(Y, X))
LANEWISE(copysign_f64, f64, LOAD2(f64, f64), copysign(Y, X))
static op_fn *const copysign_run[T_COUNT] = {[T_F32] = copysign_f32, [T_F64] = copysign_f64};

#define NEGATIVE(x) (-(x))
ONE(neg, NEGATIVE, NEGATIVE)
ONE(abs, fabsf, fabs)
ONE(sqrt, sqrtf, sqrt)
#define RSQRT(x)   (1.0f / sqrtf(x))
#define RSQRT64(x) (1.0 / sqrt(x))
ONE(rsqrt, RSQRT, RSQRT64)
#define INVERSE(x) (1 / (x))
ONE(rcp, INVERSE, INVERSE)
ONE(sin, sinf, sin)
ONE(cos, cosf, cos)
ONE(lg2, log2f, log2)
ONE(ex2, exp2f, exp2)
ONE(tanh, tanhf, tanh)

/* The upper 32 bits of an f64, as the approximations compute it: programs refine the result. */
static f64 keep_upper_bits(f64 v)
{
    u64 bits;
    memcpy(&bits, &v, sizeof bits);
    bits &= 0xffffffff00000000ull;
    memcpy(&v, &bits, sizeof v);
    return v;
}
LANEWISE(rcp_coarse, f64, LOAD1(f64), keep_upper_bits(1 / X))
LANEWISE(rsqrt_coarse, f64, LOAD1(f64), keep_upper_bits(1 / sqrt(X)))
static op_fn *const rcp_coarse_run[T_COUNT] = {[T_F64] = rcp_coarse};
static op_fn *const rsqrt_coarse_run[T_COUNT] = {[T_F64] = rsqrt_coarse};

#define M_FUSED(name, D, LOADS, e) FUSED LANEWISE(name, D, LOADS, e)
M_FUSED(fma_f32, f32, LOAD3(f32, f32, f32), fmaf(X, Y, Z))
M_FUSED(fma_ftz, f32, LOAD3(f32, f32, f32),
        flush_subnormal(fmaf(flush_subnormal(X), flush_subnormal(Y), flush_subnormal(Z))))
M_FUSED(fma_f64, f64, LOAD3(f64, f64, f64), fma(X, Y, Z))
static op_fn *const fma_run[T_COUNT] = {[T_F32] = fma_f32, [T_F64] = fma_f64};
static op_fn *const fma_flush[T_COUNT] = {[T_F32] = fma_ftz};

/* .sat of any of these: clamp to a value between 0 and 1. */
LANEWISE(saturate_f32, f32, LOAD1(f32), X > 0 ? (X < 1 ? X : 1.0f) : 0.0f)
LANEWISE(saturate_f64, f64, LOAD1(f64), X > 0 ? (X < 1 ? X : 1.0) : 0.0)
static op_fn *const saturate_run[T_COUNT] = {[T_F32] = saturate_f32, [T_F64] = saturate_f64};

#define TEST(name, e)                                  \
    static HANDLER(name##_f32)                         \
    {                                                  \
        LOAD1(f32);                                    \
        u8 t[LANES];                                   \
        EACH_LANE t[i] = (u8)(e);                      \
        keep_predicate(w, o->d, gather_bits(t), mask); \
        return o + 1;                                  \
    }                                                  \
    static HANDLER(name##_f64)                         \
    {                                                  \
        LOAD1(f64);                                    \
        u8 t[LANES];                                   \
        EACH_LANE t[i] = (u8)(e);                      \
        keep_predicate(w, o->d, gather_bits(t), mask); \
        return o + 1;                                  \
    }                                                  \
    static op_fn *const name##_run[T_COUNT] = {[T_F32] = name##_f32, [T_F64] = name##_f64};
TEST(is_finite, isfinite(X) != 0)
TEST(is_infinite, isinf(X) != 0)
TEST(is_number, X == X)
TEST(is_nan, X != X)
TEST(is_normal, isnormal(X) != 0)
TEST(is_subnormal, fpclassify(X) == FP_SUBNORMAL)

const struct alu alu_float[] = {
    {"add", "ttt", add_run, add_flush},
    {"sub", "ttt", sub_run, sub_flush},
    {"mul", "ttt", mul_run, mul_flush},
    {"fma", "tttt", fma_run, fma_flush},
    {"mad", "tttt", fma_run, fma_flush},
    {"div", "ttt", div_run, div_flush},
    {"min", "ttt", min_run, min_flush},
    {"max", "ttt", max_run, max_flush},
    {"min.NaN", "ttt", min_nan_run, min_nan_flush},
    {"max.NaN", "ttt", max_nan_run, max_nan_flush},
    {"min.xorsign.abs", "ttt", min_xorsign_run, NULL},
    {"max.xorsign.abs", "ttt", max_xorsign_run, NULL},
    {"copysign", "ttt", copysign_run, NULL},
    {"neg", "tt", neg_run, neg_flush},
    {"abs", "tt", abs_run, abs_flush},
    {"sqrt", "tt", sqrt_run, sqrt_flush},
    {"rsqrt", "tt", rsqrt_run, rsqrt_flush},
    {"rcp", "tt", rcp_run, rcp_flush},
    {"rcp.approx", "tt", rcp_coarse_run, NULL},
    {"rsqrt.approx", "tt", rsqrt_coarse_run, NULL},
    {"sin", "tt", sin_run, sin_flush},
    {"cos", "tt", cos_run, cos_flush},
    {"lg2", "tt", lg2_run, lg2_flush},
    {"ex2", "tt", ex2_run, ex2_flush},
    {"tanh", "tt", tanh_run, tanh_flush},
    {"saturate", "tt", saturate_run, NULL},
    {"testp.finite", "pt", is_finite_run, NULL},
    {"testp.infinite", "pt", is_infinite_run, NULL},
    {"testp.number", "pt", is_number_run, NULL},
    {"testp.notanumber", "pt", is_nan_run, NULL},
    {"testp.normal", "pt", is_normal_run, NULL},
    {"testp.subnormal", "pt", is_subnormal_run, NULL},
    {0},
};
