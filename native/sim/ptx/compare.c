/* Comparisons, and combinations of their results. */
#include "sim/ptx/compare.h"

#include "sim/ptx/half_float.h"
#include "sim/ptx/lanes.h"

#include <float.h>
#include <math.h>

#define X a[i]
#define Y b[i]
#define COMPARE(name, T, e)                                \
    static u32 name(const void *first, const void *second) \
    {                                                      \
        const T *a = first, *b = second;                   \
        u8 t[LANES];                                       \
        EACH_LANE t[i] = (u8)(e);                          \
        return gather_bits(t);                             \
    }
static inline f32 flush_subnormal(f32 v)
{
    return fabsf(v) < FLT_MIN ? 0 : v;
}

#define RELATIONS(T, id)        \
    COMPARE(eq_##id, T, X == Y) \
    COMPARE(ne_##id, T, X != Y) \
    COMPARE(lt_##id, T, X < Y)  \
    COMPARE(le_##id, T, X <= Y) \
    COMPARE(gt_##id, T, X > Y)  \
    COMPARE(ge_##id, T, X >= Y)
RELATIONS(u16, u16)
RELATIONS(u32, u32)
RELATIONS(u64, u64)
RELATIONS(s16, s16)
RELATIONS(s32, s32)
RELATIONS(s64, s64)

/* With a NaN the ordered relations are false and the unordered ones true. */
#define FLOATS(T, id, L)                                \
    COMPARE(eq_##id, T, L(X) == L(Y))                   \
    COMPARE(ne_##id, T, L(X) < L(Y) || L(X) > L(Y))     \
    COMPARE(lt_##id, T, L(X) < L(Y))                    \
    COMPARE(le_##id, T, L(X) <= L(Y))                   \
    COMPARE(gt_##id, T, L(X) > L(Y))                    \
    COMPARE(ge_##id, T, L(X) >= L(Y))                   \
    COMPARE(equ_##id, T, !(L(X) < L(Y) || L(X) > L(Y))) \
    COMPARE(neu_##id, T, L(X) != L(Y))                  \
    COMPARE(ltu_##id, T, !(L(X) >= L(Y)))               \
    COMPARE(leu_##id, T, !(L(X) > L(Y)))                \
    COMPARE(gtu_##id, T, !(L(X) <= L(Y)))               \
    COMPARE(geu_##id, T, !(L(X) < L(Y)))                \
    COMPARE(num_##id, T, L(X) == L(X) && L(Y) == L(Y))  \
    COMPARE(nan_##id, T, L(X) != L(X) || L(Y) != L(Y))
#define SAME(v) (v)
FLOATS(f32, f32, SAME)
FLOATS(f32, ftz, flush_subnormal)
FLOATS(f64, f64, SAME)
FLOATS(u16, f16, half_to_float)
FLOATS(u16, bf16, bfloat_to_float)

#define FOR_RELATIONS(M) M(eq, "eq") M(ne, "ne") M(lt, "lt") M(le, "le") M(gt, "gt") M(ge, "ge")
#define ALL_RELATIONS(M) \
    FOR_RELATIONS(M)     \
    M(equ, "equ")        \
    M(neu, "neu") M(ltu, "ltu") M(leu, "leu") M(gtu, "gtu") M(geu, "geu") M(num, "num") M(nan, "nan")
struct named {
    const char *name;
    compare_fn *run;
};
#define TABLE(id, list)  static const struct named of_##id[] = {list{NULL, NULL}};
#define M_u16(op, text)  {text, op##_u16},
#define M_u32(op, text)  {text, op##_u32},
#define M_u64(op, text)  {text, op##_u64},
#define M_s16(op, text)  {text, op##_s16},
#define M_s32(op, text)  {text, op##_s32},
#define M_s64(op, text)  {text, op##_s64},
#define M_f32(op, text)  {text, op##_f32},
#define M_ftz(op, text)  {text, op##_ftz},
#define M_f64(op, text)  {text, op##_f64},
#define M_f16(op, text)  {text, op##_f16},
#define M_bf16(op, text) {text, op##_bf16},
#define UNSIGNED(id)     {"lo", lt_##id}, {"ls", le_##id}, {"hi", gt_##id}, {"hs", ge_##id},
TABLE(u16, FOR_RELATIONS(M_u16) UNSIGNED(u16))
TABLE(u32, FOR_RELATIONS(M_u32) UNSIGNED(u32))
TABLE(u64, FOR_RELATIONS(M_u64) UNSIGNED(u64))
TABLE(s16, FOR_RELATIONS(M_s16))
TABLE(s32, FOR_RELATIONS(M_s32))
TABLE(s64, FOR_RELATIONS(M_s64))
TABLE(f32, ALL_RELATIONS(M_f32))
TABLE(ftz, ALL_RELATIONS(M_ftz))
TABLE(f64, ALL_RELATIONS(M_f64))
TABLE(f16, ALL_RELATIONS(M_f16))
TABLE(bf16, ALL_RELATIONS(M_bf16))

static const struct named *const by_type[T_COUNT] = {
    [T_B16] = of_u16, [T_U16] = of_u16, [T_S16] = of_s16,  [T_B32] = of_u32, [T_U32] = of_u32,
    [T_S32] = of_s32, [T_B64] = of_u64, [T_U64] = of_u64,  [T_S64] = of_s64, [T_F32] = of_f32,
    [T_F64] = of_f64, [T_F16] = of_f16, [T_BF16] = of_bf16};

compare_fn *compare_named(const char *name, size_t length, enum type t, bool flush_inputs)
{
    const struct named *n = t == T_F32 && flush_inputs ? of_ftz : by_type[t];
    for (; n && n->name; n++) {
        if (strlen(n->name) == length && memcmp(n->name, name, length) == 0) return n->run;
    }
    return NULL;
}

static u32 combine_with_predicate(const struct warp *w, const struct op *o, u32 r)
{
    if (!(o->flag & COMBINE_MASK)) return r;
    u32 p = predicate(w, o->c);
    if (o->flag & COMBINE_NOT) p = ~p;
    switch (o->flag & COMBINE_MASK) {
    case COMBINE_AND:
        return r & p;
    case COMBINE_OR:
        return r | p;
    default:
        return r ^ p;
    }
}

const struct op *op_setp(struct warp *w, const struct op *o, u32 mask)
{
    u32 r = ((compare_fn *)o->extra)(in(w, o->a), in(w, o->b));
    if (o->flag) {
        u32 first = combine_with_predicate(w, o, r), second = combine_with_predicate(w, o, ~r);
        if (o->flag & COMBINE_SECOND) keep_predicate(w, o->e, second, mask);
        r = first;
    }
    keep_predicate(w, o->d, r, mask);
    return o + 1;
}

static const struct op *result_store(struct warp *w, const struct op *o, u32 mask, u32 truth)
{
    u32 r = combine_with_predicate(w, o, ((compare_fn *)o->extra)(in(w, o->a), in(w, o->b))), t[LANES],
        *d = out(w, o->d);
    EACH_LANE t[i] = r & lane_bit[i] ? truth : 0;
    keep(d, t, sizeof *d, mask);
    return o + 1;
}

const struct op *op_set_float(struct warp *w, const struct op *o, u32 mask)
{
    return result_store(w, o, mask, 0x3f800000u);
}

const struct op *op_set_integer(struct warp *w, const struct op *o, u32 mask)
{
    return result_store(w, o, mask, UINT32_MAX);
}

const struct op *op_set_half(struct warp *w, const struct op *o, u32 mask)
{
    u32 r = combine_with_predicate(w, o, ((compare_fn *)o->extra)(in(w, o->a), in(w, o->b)));
    u16 t[LANES], *d = out(w, o->d);
    EACH_LANE t[i] = r & lane_bit[i] ? (u16)o->immediate : 0;
    keep(d, t, sizeof *d, mask);
    return o + 1;
}

struct halves {
    u32 low, high;
};

static struct halves compare_pair(const struct warp *w, const struct op *o)
{
    const u32 *a = in(w, o->a), *b = in(w, o->b);
    u16 x[LANES], y[LANES];
    EACH_LANE x[i] = (u16)a[i];
    EACH_LANE y[i] = (u16)b[i];
    u32 low = ((compare_fn *)o->extra)(x, y);
    EACH_LANE x[i] = (u16)(a[i] >> 16);
    EACH_LANE y[i] = (u16)(b[i] >> 16);
    return (struct halves){combine_with_predicate(w, o, low),
                           combine_with_predicate(w, o, ((compare_fn *)o->extra)(x, y))};
}

const struct op *op_set_pair(struct warp *w, const struct op *o, u32 mask)
{
    struct halves r = compare_pair(w, o);
    u32 t[LANES], *d = out(w, o->d), truth = (u16)o->immediate;
    EACH_LANE t[i] = (r.low & lane_bit[i] ? truth : 0) | (r.high & lane_bit[i] ? truth << 16 : 0);
    keep(d, t, sizeof *d, mask);
    return o + 1;
}

const struct op *op_setp_pair(struct warp *w, const struct op *o, u32 mask)
{
    struct halves r = compare_pair(w, o);
    if (o->flag & COMBINE_SECOND) keep_predicate(w, o->e, r.high, mask);
    keep_predicate(w, o->d, r.low, mask);
    return o + 1;
}
