/* Operations on bits and bytes of integers. */
#include "sim/ptx/alu.h"
#include "sim/ptx/lanes.h"

#define X a[i]
#define Y b[i]
#define Z c[i]

/* Shifts by the width or more result in the bits that are shifted in. */
LANEWISE(shl_16, u16, LOAD2(u16, u32), Y > 15 ? 0 : X << Y)
LANEWISE(shl_32, u32, LOAD2(u32, u32), Y > 31 ? 0 : X << Y)
LANEWISE(shl_64, u64, LOAD2(u64, u32), Y > 63 ? 0 : X << Y)
LANEWISE(shr_u16, u16, LOAD2(u16, u32), Y > 15 ? 0 : X >> Y)
LANEWISE(shr_u32, u32, LOAD2(u32, u32), Y > 31 ? 0 : X >> Y)
LANEWISE(shr_u64, u64, LOAD2(u64, u32), Y > 63 ? 0 : X >> Y)
LANEWISE(shr_s16, s16, LOAD2(s16, u32), X >> (Y > 15 ? 15 : Y))
LANEWISE(shr_s32, s32, LOAD2(s32, u32), X >> (Y > 31 ? 31 : Y))
LANEWISE(shr_s64, s64, LOAD2(s64, u32), X >> (Y > 63 ? 63 : Y))
static op_fn *const shl[T_COUNT] = {
    [T_B16] = shl_16, [T_B32] = shl_32, [T_B64] = shl_64, [T_U32] = shl_32, [T_S32] = shl_32,
    [T_U64] = shl_64, [T_S64] = shl_64, [T_U16] = shl_16, [T_S16] = shl_16};
static op_fn *const shr[T_COUNT] = {
    [T_B16] = shr_u16, [T_B32] = shr_u32, [T_B64] = shr_u64, [T_U16] = shr_u16, [T_U32] = shr_u32,
    [T_U64] = shr_u64, [T_S16] = shr_s16, [T_S32] = shr_s32, [T_S64] = shr_s64};

LANEWISE(popc_32, u32, LOAD1(u32), (u32)__builtin_popcount(X))
LANEWISE(popc_64, u32, LOAD1(u64), (u32)__builtin_popcountll(X))
LANEWISE(clz_32, u32, LOAD1(u32), X ? (u32)__builtin_clz(X) : 32)
LANEWISE(clz_64, u32, LOAD1(u64), X ? (u32)__builtin_clzll(X) : 64)
static op_fn *const popc[T_COUNT] = {[T_B32] = popc_32, [T_B64] = popc_64};
static op_fn *const clz[T_COUNT] = {[T_B32] = clz_32, [T_B64] = clz_64};

static inline u32 reverse_bits(u32 v)
{
    v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
    v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
    v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(v);
}
LANEWISE(brev_32, u32, LOAD1(u32), reverse_bits(X))
LANEWISE(brev_64, u64, LOAD1(u64), (u64)reverse_bits((u32)X) << 32 | reverse_bits((u32)(X >> 32)))
static op_fn *const brev[T_COUNT] = {[T_B32] = brev_32, [T_B64] = brev_64};

/* The highest bit that differs from the sign; all ones if there is none. */
#define HIGHEST(v, bits, clz_) ((v) ? (u32)(bits - 1 - clz_(v)) : UINT32_MAX)
#define DIFFERS(T, v)          ((T)((v) < 0 ? ~(v) : (v)))
LANEWISE(bfind_u32, u32, LOAD1(u32), HIGHEST(X, 32, __builtin_clz))
LANEWISE(bfind_u64, u32, LOAD1(u64), HIGHEST(X, 64, __builtin_clzll))
LANEWISE(bfind_s32, u32, LOAD1(s32), HIGHEST(DIFFERS(u32, X), 32, __builtin_clz))
LANEWISE(bfind_s64, u32, LOAD1(s64), HIGHEST(DIFFERS(u64, X), 64, __builtin_clzll))
#define SHIFTED(v, bits, clz_) ((v) ? (u32)clz_(v) : UINT32_MAX)
LANEWISE(bfind_shift_u32, u32, LOAD1(u32), SHIFTED(X, 32, __builtin_clz))
LANEWISE(bfind_shift_u64, u32, LOAD1(u64), SHIFTED(X, 64, __builtin_clzll))
LANEWISE(bfind_shift_s32, u32, LOAD1(s32), SHIFTED(DIFFERS(u32, X), 32, __builtin_clz))
LANEWISE(bfind_shift_s64, u32, LOAD1(s64), SHIFTED(DIFFERS(u64, X), 64, __builtin_clzll))
static op_fn *const bfind[T_COUNT] = {
    [T_U32] = bfind_u32, [T_U64] = bfind_u64, [T_S32] = bfind_s32, [T_S64] = bfind_s64};
static op_fn *const bfind_shift[T_COUNT] = {[T_U32] = bfind_shift_u32,
                                            [T_U64] = bfind_shift_u64,
                                            [T_S32] = bfind_shift_s32,
                                            [T_S64] = bfind_shift_s64};

static u64 extract_bits(u64 v, u32 position, u32 length, u32 bits, bool is_signed)
{
    u32 p = position & 0xff, n = length & 0xff;
    u32 top = p + n > bits ? bits - 1 : p + n ? p + n - 1 : 0;
    u64 sign = is_signed && n ? v >> (top >= bits ? bits - 1 : top) & 1 : 0, r = p < bits ? v >> p : 0;
    u32 there = p >= bits ? 0 : n < bits - p ? n : bits - p;
    u64 low = there >= 64 ? UINT64_MAX : (1ull << there) - 1;
    return sign ? r | ~low : r & low;
}
LANEWISE(bfe_u32, u32, LOAD3(u32, u32, u32), extract_bits(X, Y, Z, 32, false))
LANEWISE(bfe_u64, u64, LOAD3(u64, u32, u32), extract_bits(X, Y, Z, 64, false))
LANEWISE(bfe_s32, u32, LOAD3(u32, u32, u32), extract_bits(X, Y, Z, 32, true))
LANEWISE(bfe_s64, u64, LOAD3(u64, u32, u32), extract_bits(X, Y, Z, 64, true))
static op_fn *const bfe[T_COUNT] = {
    [T_U32] = bfe_u32, [T_U64] = bfe_u64, [T_S32] = bfe_s32, [T_S64] = bfe_s64};

static u64 insert_bits(u64 v, u64 into, u32 position, u32 length, u32 bits)
{
    u32 p = position & 0xff, n = length & 0xff;
    if (p >= bits) return into;
    if (n > bits - p) n = bits - p;
    u64 field = (n >= 64 ? UINT64_MAX : (1ull << n) - 1) << p;
    return (into & ~field) | (v << p & field);
}
#define FOURTH(E) const E *e = in(w, o->e)
LANEWISE(bfi_32, u32, LOAD3(u32, u32, u32); FOURTH(u32), insert_bits(X, Y, Z, e[i], 32))
LANEWISE(bfi_64, u64, LOAD3(u64, u64, u32); FOURTH(u32), insert_bits(X, Y, Z, e[i], 64))
static op_fn *const bfi[T_COUNT] = {[T_B32] = bfi_32, [T_B64] = bfi_64};

/* The n-th bit that is set, from a base on, upwards or downwards. */
static u32 nth_set(u32 v, u32 base, s32 n)
{
    s32 step = n < 0 ? -1 : 1, left = n < -32 || n > 32 ? 33 : n < 0 ? -n : n;
    if (n == 0) return base < 32 && v >> base & 1 ? base : UINT32_MAX;
    for (s32 at = (s32)base; at >= 0 && at < 32; at += step) {
        if (v >> at & 1 && --left == 0) return (u32)at;
    }
    return UINT32_MAX;
}
LANEWISE(fns_32, u32, LOAD3(u32, u32, s32), nth_set(X, Y, Z))
static op_fn *const fns[T_COUNT] = {[T_B32] = fns_32};

/* Bytes of two words in the order of a selector; each mode has its own selectors. */
static u32 permute_bytes(u32 x, u32 y, u32 selector, u32 mode)
{
    static const uint16_t fixed[6][4] = {
        {0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701 /* b4e */, 0x7012, 0x0123},
        {0x0000, 0x1111, 0x2222, 0x3333}, {0x3210, 0x3211, 0x3222, 0x3333},
        {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
    u64 both = (u64)y << 32 | x;
    u32 r = 0;
    if (mode) selector = fixed[mode - 1][selector & 3];
    for (u32 k = 0; k < 4; k++) {
        u32 s = selector >> (4 * k) & 15, byte = (u32)(both >> (8 * (s & 7))) & 0xff;
        if (!mode && s & 8) byte = byte & 0x80 ? 0xff : 0;
        r |= byte << (8 * k);
    }
    return r;
}
#define PERMUTE(name, mode)                                                 \
    LANEWISE(name, u32, LOAD3(u32, u32, u32), permute_bytes(X, Y, Z, mode)) \
    static op_fn *const name##_table[T_COUNT] = {[T_B32] = name};
PERMUTE(prmt, 0)
PERMUTE(prmt_f4e, 1)
PERMUTE(prmt_b4e, 2)
PERMUTE(prmt_rc8, 3)
PERMUTE(prmt_ecl, 4)
PERMUTE(prmt_ecr, 5)
PERMUTE(prmt_rc16, 6)

/* 32 bits of a pair of words, shifted. */
#define PAIR ((u64)Y << 32 | X)
#define FUNNEL(name, e)                          \
    LANEWISE(name, u32, LOAD3(u32, u32, u32), e) \
    static op_fn *const name##_table[T_COUNT] = {[T_B32] = name};
FUNNEL(shf_l_wrap, PAIR << (Z & 31) >> 32)
FUNNEL(shf_l_clamp, Z > 31 ? X : (u32)(PAIR << Z >> 32))
FUNNEL(shf_r_wrap, PAIR >> (Z & 31))
FUNNEL(shf_r_clamp, Z > 31 ? Y : (u32)(PAIR >> Z))

LANEWISE(szext_wrap_u32, u32, LOAD2(u32, u32), extract_bits(X, 0, Y & 31, 32, false))
LANEWISE(szext_wrap_s32, u32, LOAD2(u32, u32), extract_bits(X, 0, Y & 31, 32, true))
LANEWISE(szext_clamp_u32, u32, LOAD2(u32, u32), extract_bits(X, 0, Y > 32 ? 32 : Y, 32, false))
LANEWISE(szext_clamp_s32, u32, LOAD2(u32, u32), extract_bits(X, 0, Y > 32 ? 32 : Y, 32, true))
static op_fn *const szext_wrap[T_COUNT] = {[T_U32] = szext_wrap_u32, [T_S32] = szext_wrap_s32};
static op_fn *const szext_clamp[T_COUNT] = {[T_U32] = szext_clamp_u32, [T_S32] = szext_clamp_s32};
LANEWISE(bmsk_clamp_32, u32, LOAD2(u32, u32),
         insert_bits(UINT32_MAX, 0, X > 255 ? 255 : X, Y > 32 ? 32 : Y, 32))
LANEWISE(bmsk_wrap_32, u32, LOAD2(u32, u32), insert_bits(UINT32_MAX, 0, X & 31, Y & 31, 32))
static op_fn *const bmsk_clamp[T_COUNT] = {[T_B32] = bmsk_clamp_32};
static op_fn *const bmsk_wrap[T_COUNT] = {[T_B32] = bmsk_wrap_32};

const struct alu alu_bits[] = {
    {"shl", "ttu", shl, NULL},
    {"shr", "ttu", shr, NULL},
    {"popc", "ut", popc, NULL},
    {"clz", "ut", clz, NULL},
    {"brev", "tt", brev, NULL},
    {"bfind", "ut", bfind, NULL},
    {"bfind.shiftamt", "ut", bfind_shift, NULL},
    {"bfe", "ttuu", bfe, NULL},
    {"bfi", "tttuu", bfi, NULL},
    {"fns", "tttt", fns, NULL},
    {"prmt", "tttt", prmt_table, NULL},
    {"prmt.f4e", "tttt", prmt_f4e_table, NULL},
    {"prmt.b4e", "tttt", prmt_b4e_table, NULL},
    {"prmt.rc8", "tttt", prmt_rc8_table, NULL},
    {"prmt.ecl", "tttt", prmt_ecl_table, NULL},
    {"prmt.ecr", "tttt", prmt_ecr_table, NULL},
    {"prmt.rc16", "tttt", prmt_rc16_table, NULL},
    {"shf.l.wrap", "tttt", shf_l_wrap_table, NULL},
    {"shf.l.clamp", "tttt", shf_l_clamp_table, NULL},
    {"shf.r.wrap", "tttt", shf_r_wrap_table, NULL},
    {"shf.r.clamp", "tttt", shf_r_clamp_table, NULL},
    {"szext.wrap", "ttu", szext_wrap, NULL},
    {"szext.clamp", "ttu", szext_clamp, NULL},
    {"bmsk.wrap", "ttt", bmsk_wrap, NULL},
    {"bmsk.clamp", "ttt", bmsk_clamp, NULL},
    {0},
};
