/* Integer arithmetic. */
#include "sim/ptx/alu.h"
#include "sim/ptx/lanes.h"

/* Overflow wraps, so signed types are computed as unsigned ones where the result is the same. */
#define X                       a[i]
#define Y                       b[i]
#define Z                       c[i]
#define ONE(name, D, A, e)      LANEWISE(name, D, LOAD1(A), e)
#define TWO(name, D, A, e)      LANEWISE(name, D, LOAD2(A, A), e)
#define THREE(name, D, A, C, e) LANEWISE(name, D, LOAD3(A, A, C), e)
#define WRAPPING(op, e)       \
    TWO(op##_16, u16, u16, e) \
    TWO(op##_32, u32, u32, e) \
    TWO(op##_64, u64, u64, e)
#define SIX(op, M, e)   \
    M(op##_u16, u16, e) \
    M(op##_u32, u32, e) M(op##_u64, u64, e) M(op##_s16, s16, e) M(op##_s32, s32, e) M(op##_s64, s64, e)
#define SAME(D, e_)
#define TABLE3(op)                                                                                  \
    {[T_U16] = op##_16, [T_S16] = op##_16, [T_B16] = op##_16, [T_U32] = op##_32, [T_S32] = op##_32, \
     [T_B32] = op##_32, [T_U64] = op##_64, [T_S64] = op##_64, [T_B64] = op##_64}
#define TABLE6(op)                                               \
    {[T_U16] = op##_u16, [T_S16] = op##_s16, [T_U32] = op##_u32, \
     [T_S32] = op##_s32, [T_U64] = op##_u64, [T_S64] = op##_s64}

WRAPPING(add, X + Y)
WRAPPING(sub, X - Y)
WRAPPING(mul, (u64)X *(u64)Y)
static op_fn *const add[T_COUNT] = TABLE3(add);
static op_fn *const sub[T_COUNT] = TABLE3(sub);
static op_fn *const mul_lo[T_COUNT] = TABLE3(mul);

THREE(mad_16, u16, u16, u16, (u32)X *Y + Z)
THREE(mad_32, u32, u32, u32, X *Y + Z)
THREE(mad_64, u64, u64, u64, X *Y + Z)
static op_fn *const mad_lo[T_COUNT] = TABLE3(mad);

#define HIGH(T, W, bits, x, y) ((T)(((W)(x) * (W)(y)) >> bits))
TWO(mul_hi_u16, u16, u16, HIGH(u16, u32, 16, X, Y))
TWO(mul_hi_s16, s16, s16, HIGH(s16, s32, 16, X, Y))
TWO(mul_hi_u32, u32, u32, HIGH(u32, u64, 32, X, Y))
TWO(mul_hi_s32, s32, s32, HIGH(s32, s64, 32, X, Y))
TWO(mul_hi_u64, u64, u64, HIGH(u64, unsigned __int128, 64, X, Y))
TWO(mul_hi_s64, s64, s64, HIGH(s64, __int128, 64, X, Y))
THREE(mad_hi_u16, u16, u16, u16, HIGH(u16, u32, 16, X, Y) + Z)
THREE(mad_hi_s16, u16, s16, u16, (u16)HIGH(s16, s32, 16, X, Y) + Z)
THREE(mad_hi_u32, u32, u32, u32, HIGH(u32, u64, 32, X, Y) + Z)
THREE(mad_hi_s32, u32, s32, u32, (u32)HIGH(s32, s64, 32, X, Y) + Z)
THREE(mad_hi_u64, u64, u64, u64, HIGH(u64, unsigned __int128, 64, X, Y) + Z)
THREE(mad_hi_s64, u64, s64, u64, (u64)HIGH(s64, __int128, 64, X, Y) + Z)
static op_fn *const mul_hi[T_COUNT] = TABLE6(mul_hi);
static op_fn *const mad_hi[T_COUNT] = TABLE6(mad_hi);

TWO(mul_wide_u16, u32, u16, (u32)X *Y)
TWO(mul_wide_s16, s32, s16, (s32)X *Y)
TWO(mul_wide_u32, u64, u32, (u64)X *Y)
TWO(mul_wide_s32, s64, s32, (s64)X *Y)
THREE(mad_wide_u16, u32, u16, u32, (u32)X *Y + Z)
THREE(mad_wide_s16, u32, s16, u32, (u32)((s32)X *Y) + Z)
THREE(mad_wide_u32, u64, u32, u64, (u64)X *Y + Z)
THREE(mad_wide_s32, u64, s32, u64, (u64)((s64)X *Y) + Z)
#define TABLE_WIDE(op) {[T_U16] = op##_u16, [T_S16] = op##_s16, [T_U32] = op##_u32, [T_S32] = op##_s32}
static op_fn *const mul_wide[T_COUNT] = TABLE_WIDE(mul_wide);
static op_fn *const mad_wide[T_COUNT] = TABLE_WIDE(mad_wide);

/* Division by zero, as the hardware does it: all bits set, and the dividend as remainder. */
#define DIVIDE_U(T)    (Y ? X / Y : (T) - 1)
#define DIVIDE_S(T, U) (Y == 0 ? (T) - 1 : Y == -1 ? (T)(0 - (U)X) : (T)(X / Y))
#define REST_U         (Y ? X % Y : X)
#define REST_S         (Y == 0 ? X : Y == -1 ? 0 : X % Y)
TWO(div_u16, u16, u16, DIVIDE_U(u16))
TWO(div_u32, u32, u32, DIVIDE_U(u32))
TWO(div_u64, u64, u64, DIVIDE_U(u64))
TWO(div_s16, s16, s16, DIVIDE_S(s16, u16))
TWO(div_s32, s32, s32, DIVIDE_S(s32, u32))
TWO(div_s64, s64, s64, DIVIDE_S(s64, u64))
TWO(rem_u16, u16, u16, REST_U)
TWO(rem_u32, u32, u32, REST_U)
TWO(rem_u64, u64, u64, REST_U)
TWO(rem_s16, s16, s16, REST_S)
TWO(rem_s32, s32, s32, REST_S)
TWO(rem_s64, s64, s64, REST_S)
static op_fn *const divide[T_COUNT] = TABLE6(div);
static op_fn *const rest[T_COUNT] = TABLE6(rem);

#define LEAST             (X < Y ? X : Y)
#define MOST              (X > Y ? X : Y)
#define M_TWO(name, T, e) TWO(name, T, T, e)
SIX(min, M_TWO, LEAST)
SIX(max, M_TWO, MOST)
static op_fn *const least[T_COUNT] = TABLE6(min);
static op_fn *const most[T_COUNT] = TABLE6(max);

ONE(neg_16, u16, u16, 0 - X)
ONE(neg_32, u32, u32, 0 - X)
ONE(neg_64, u64, u64, 0 - X)
static op_fn *const neg[T_COUNT] = TABLE3(neg);
ONE(abs_16, u16, s16, X < 0 ? 0 - (u32)X : (u32)X)
ONE(abs_32, u32, s32, X < 0 ? 0 - (u32)X : (u32)X)
ONE(abs_64, u64, s64, X < 0 ? 0 - (u64)X : (u64)X)
static op_fn *const absolute[T_COUNT] = TABLE3(abs);

/* |a - b| + c */
#define APART(U)          ((U)(X > Y ? (U)X - (U)Y : (U)Y - (U)X) + (U)Z)
#define M_SAD(name, T, U) THREE(name, U, T, T, APART(U))
M_SAD(sad_u16, u16, u16)
M_SAD(sad_s16, s16, u16)
M_SAD(sad_u32, u32, u32)
M_SAD(sad_s32, s32, u32)
M_SAD(sad_u64, u64, u64)
M_SAD(sad_s64, s64, u64)
static op_fn *const sad[T_COUNT] = TABLE6(sad);

#define LOW24_U(v) ((v) & 0xffffffu)
#define LOW24_S(v) ((s32)((u32)(v) << 8) >> 8)
TWO(mul24_lo_u32, u32, u32, LOW24_U(X) * LOW24_U(Y))
TWO(mul24_lo_s32, u32, u32, (u32)LOW24_S(X) * (u32)LOW24_S(Y))
TWO(mul24_hi_u32, u32, u32, (u64)LOW24_U(X) * LOW24_U(Y) >> 16)
TWO(mul24_hi_s32, s32, u32, (s64)LOW24_S(X) * LOW24_S(Y) >> 16)
THREE(mad24_lo_u32, u32, u32, u32, LOW24_U(X) * LOW24_U(Y) + Z)
THREE(mad24_lo_s32, u32, u32, u32, (u32)LOW24_S(X) * (u32)LOW24_S(Y) + Z)
THREE(mad24_hi_u32, u32, u32, u32, (u32)((u64)LOW24_U(X) * LOW24_U(Y) >> 16) + Z)
THREE(mad24_hi_s32, u32, u32, u32, (u32)((s64)LOW24_S(X) * LOW24_S(Y) >> 16) + Z)
static op_fn *const mul24_lo[T_COUNT] = {[T_U32] = mul24_lo_u32, [T_S32] = mul24_lo_s32};
static op_fn *const mul24_hi[T_COUNT] = {[T_U32] = mul24_hi_u32, [T_S32] = mul24_hi_s32};
static op_fn *const mad24_lo[T_COUNT] = {[T_U32] = mad24_lo_u32, [T_S32] = mad24_lo_s32};
static op_fn *const mad24_hi[T_COUNT] = {[T_U32] = mad24_hi_u32, [T_S32] = mad24_hi_s32};

#define CLAMP(v) ((v) > INT32_MAX ? INT32_MAX : (v) < INT32_MIN ? INT32_MIN : (v))
TWO(add_sat_s32, s32, s32, CLAMP((s64)X + Y))
TWO(sub_sat_s32, s32, s32, CLAMP((s64)X - Y))
THREE(mad_hi_sat_s32, s32, s32, s32, CLAMP(((s64)X * Y >> 32) + Z))
static op_fn *const add_sat[T_COUNT] = {[T_S32] = add_sat_s32};
static op_fn *const sub_sat[T_COUNT] = {[T_S32] = sub_sat_s32};
static op_fn *const mad_hi_sat[T_COUNT] = {[T_S32] = mad_hi_sat_s32};

const struct alu alu_integer[] = {
    {"add", "ttt", add, NULL},
    {"sub", "ttt", sub, NULL},
    {"add.sat", "ttt", add_sat, NULL},
    {"sub.sat", "ttt", sub_sat, NULL},
    {"mul.lo", "ttt", mul_lo, NULL},
    {"mul.hi", "ttt", mul_hi, NULL},
    {"mul.wide", "wtt", mul_wide, NULL},
    {"mad.lo", "tttt", mad_lo, NULL},
    {"mad.hi", "tttt", mad_hi, NULL},
    {"mad.hi.sat", "tttt", mad_hi_sat, NULL},
    {"mad.wide", "wttw", mad_wide, NULL},
    {"mul24.lo", "ttt", mul24_lo, NULL},
    {"mul24.hi", "ttt", mul24_hi, NULL},
    {"mad24.lo", "tttt", mad24_lo, NULL},
    {"mad24.hi", "tttt", mad24_hi, NULL},
    {"div", "ttt", divide, NULL},
    {"rem", "ttt", rest, NULL},
    {"min", "ttt", least, NULL},
    {"max", "ttt", most, NULL},
    {"neg", "tt", neg, NULL},
    {"abs", "tt", absolute, NULL},
    {"sad", "tttt", sad, NULL},
    {0},
};
