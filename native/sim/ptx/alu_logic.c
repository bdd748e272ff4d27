/* Logic, moves and selections; also on predicates. */
#include "sim/ptx/alu.h"
#include "sim/ptx/lanes.h"

#define X              a[i]
#define Y              b[i]
#define Z              c[i]
#define SIZES(name, M) M(name##_16, u16) M(name##_32, u32) M(name##_64, u64)
#define BY_SIZE(name)                                                                         \
    [T_B16] = name##_16, [T_U16] = name##_16, [T_S16] = name##_16, [T_F16] = name##_16,       \
    [T_BF16] = name##_16, [T_B32] = name##_32, [T_U32] = name##_32, [T_S32] = name##_32,      \
    [T_F32] = name##_32, [T_F16X2] = name##_32, [T_BF16X2] = name##_32, [T_TF32] = name##_32, \
    [T_B64] = name##_64, [T_U64] = name##_64, [T_S64] = name##_64, [T_F64] = name##_64

#define LOGIC(name, word, one)                              \
    LANEWISE(name##_16, u16, LOAD2(u16, u16), word)         \
    LANEWISE(name##_32, u32, LOAD2(u32, u32), word)         \
    LANEWISE(name##_64, u64, LOAD2(u64, u64), word)         \
    static HANDLER(name##_pred)                             \
    {                                                       \
        u32 x = predicate(w, o->a), y = predicate(w, o->b); \
        keep_predicate(w, o->d, one, mask);                 \
        return o + 1;                                       \
    }                                                       \
    static op_fn *const name##_table[T_COUNT] = {BY_SIZE(name), [T_PRED] = name##_pred};
LOGIC(and, X &Y, x &y)
LOGIC(or, X | Y, x | y)
LOGIC(xor, X ^ Y, x ^ y)

#define UNARY(name, word, one)                 \
    LANEWISE(name##_16, u16, LOAD1(u16), word) \
    LANEWISE(name##_32, u32, LOAD1(u32), word) \
    LANEWISE(name##_64, u64, LOAD1(u64), word) \
    static HANDLER(name##_pred)                \
    {                                          \
        u32 x = predicate(w, o->a);            \
        keep_predicate(w, o->d, one, mask);    \
        return o + 1;                          \
    }                                          \
    static op_fn *const name##_table[T_COUNT] = {BY_SIZE(name), [T_PRED] = name##_pred};
UNARY(not, ~X, ~x)
UNARY(cnot, X == 0, ~x)
UNARY(move, X, x)

#define CHOOSE(name, T) LANEWISE(name, T, LOAD2(T, T); u32 p = predicate(w, o->c), p & lane_bit[i] ? X : Y)
SIZES(selp, CHOOSE)
static HANDLER(selp_pred)
{
    u32 x = predicate(w, o->a), y = predicate(w, o->b), p = predicate(w, o->c);
    keep_predicate(w, o->d, (x & p) | (y & ~p), mask);
    return o + 1;
}
static op_fn *const selp_table[T_COUNT] = {BY_SIZE(selp), [T_PRED] = selp_pred};

/* Selection by the sign of c. */
#define SLCT_S(name, T) LANEWISE(name, T, LOAD3(T, T, s32), Z >= 0 ? X : Y)
#define SLCT_F(name, T) LANEWISE(name, T, LOAD3(T, T, f32), Z >= 0.0f ? X : Y)
SIZES(slct_s, SLCT_S)
SIZES(slct_f, SLCT_F)
static op_fn *const slct_s_table[T_COUNT] = {BY_SIZE(slct_s)};
static op_fn *const slct_f_table[T_COUNT] = {BY_SIZE(slct_f)};

/* Any function of three bits: the immediate is its table. */
static HANDLER(lop3_32)
{
    LOAD3(u32, u32, u32);
    u32 *d = out(w, o->d), t[LANES], f = (u32)o->immediate;
    memset(t, 0, sizeof t);
    for (u32 k = 0; k < 8; k++) {
        if (!(f >> k & 1)) continue;
        u32 nx = k & 4 ? 0 : FULL, ny = k & 2 ? 0 : FULL, nz = k & 1 ? 0 : FULL;
        EACH_LANE t[i] |= (a[i] ^ nx) & (b[i] ^ ny) & (c[i] ^ nz);
    }
    keep(d, t, sizeof *d, mask);
    return o + 1;
}
static op_fn *const lop3_table[T_COUNT] = {[T_B32] = lop3_32};

const struct alu alu_logic[] = {
    {"and", "ttt", and_table, NULL},
    {"or", "ttt", or_table, NULL},
    {"xor", "ttt", xor_table, NULL},
    {"not", "tt", not_table, NULL},
    {"cnot", "tt", cnot_table, NULL},
    {"mov", "tt", move_table, NULL},
    {"selp", "tttp", selp_table, NULL},
    {"slct.s32", "tttu", slct_s_table, NULL},
    {"slct.f32", "tttu", slct_f_table, NULL},
    {"lop3", "tttti", lop3_table, NULL},
    {0},
};
