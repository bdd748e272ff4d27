/* Reading and writing of lanes in handlers. */
#ifndef CALABASH_SIM_PTX_LANES_H
#define CALABASH_SIM_PTX_LANES_H

#include "sim/ptx/machine.h"

#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef float f32;
typedef double f64;

/* Lanes are independent of each other: two places are either the same register or do not overlap. */
#define EACH_LANE _Pragma("GCC ivdep") for (int i = 0; i < LANES; i++)
#define SET_LANES(mask) \
    for (uint32_t rest_ = (mask), i = 0; rest_ && (i = (uint32_t)__builtin_ctz(rest_), 1); rest_ &= rest_ - 1)

static inline const void *in(const struct warp *w, uint32_t at)
{
    return w->base[at >> 31] + (at & ~CONSTANT);
}

static inline void *out(const struct warp *w, uint32_t at)
{
    return w->base[0] + at;
}

static const u32 lane_bit[LANES] = {1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,
                                    1u << 7,  1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13,
                                    1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20,
                                    1u << 21, 1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27,
                                    1u << 28, 1u << 29, 1u << 30, 1u << 31};

/* Store the lanes of the mask from `t`; the others keep their values. */
static inline void keep(void *d, const void *t, size_t width, u32 mask)
{
    if (width == 4) {
        u32 *to = d;
        const u32 *from = t;
        EACH_LANE to[i] = mask & lane_bit[i] ? from[i] : to[i];
    } else if (width == 8) {
        u64 *to = d;
        const u64 *from = t;
        EACH_LANE to[i] = mask & lane_bit[i] ? from[i] : to[i];
    } else if (width == 2) {
        u16 *to = d;
        const u16 *from = t;
        EACH_LANE to[i] = mask & lane_bit[i] ? from[i] : to[i];
    } else {
        u8 *to = d;
        const u8 *from = t;
        SET_LANES(mask) memcpy(to + i * width, from + i * width, width);
    }
}

static inline void keep_predicate(const struct warp *w, uint32_t at, u32 value, u32 mask)
{
    u32 *d = out(w, at);
    *d = (*d & ~mask) | (value & mask);
}

static inline u32 predicate(const struct warp *w, uint32_t at)
{
    return *(const u32 *)in(w, at);
}

/* A bit for each of 32 bytes that are 0 or 1. */
static inline u32 gather_bits(const u8 *t)
{
    u32 r = 0;
    for (int k = 0; k < 4; k++) {
        u64 x;
        memcpy(&x, t + 8 * k, sizeof x);
        r |= (u32)(x * 0x0102040810204080ull >> 56) << (8 * k);
    }
    return r;
}

#define FIRST(mask) ((u32)__builtin_ctz(mask))

#define HANDLER(name) const struct op *name(struct warp *w, const struct op *o, u32 mask)

/* Code for newer processors beside the generic one, chosen when the library is loaded. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define FUSED __attribute__((target_clones("fma", "default")))
#define WIDE  __attribute__((target_clones("avx2", "default")))
#else
#define FUSED
#define WIDE
#endif

/* d[i] = expression of a[i] (x), b[i] (y), c[i] (z) */
#define LANEWISE(name, D, LOADS, EXPRESSION)  \
    static HANDLER(name)                      \
    {                                         \
        LOADS;                                \
        D *d = out(w, o->d);                  \
        if (mask == FULL) {                   \
            EACH_LANE d[i] = (D)(EXPRESSION); \
        } else {                              \
            D t[LANES];                       \
            EACH_LANE t[i] = (D)(EXPRESSION); \
            keep(d, t, sizeof(D), mask);      \
        }                                     \
        return o + 1;                         \
    }
#define LOAD1(A) const A *a = in(w, o->a)
#define LOAD2(A, B)           \
    const A *a = in(w, o->a); \
    const B *b = in(w, o->b)
#define LOAD3(A, B, C)        \
    const A *a = in(w, o->a); \
    const B *b = in(w, o->b); \
    const C *c = in(w, o->c)

#endif
