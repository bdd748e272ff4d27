/* Frequent conversions: between registers of exactly these types, without any modifier. */
#include "sim/ptx/convert_fast.h"

#include "sim/ptx/lanes.h"

/* clang-format off */
#define PAIRS(M)                                                                                        \
    M(U64, u64, U32, u32)                                                                               \
    M(S64, s64, S32, s32)                                                                               \
    M(U32, u32, U64, u64)                                                                               \
    M(S32, s32, S64, s64)                                                                               \
    M(U32, u32, S64, s64)                                                                               \
    M(S32, s32, U64, u64)                                                                               \
    M(U32, u32, S32, s32)                                                                               \
    M(S32, s32, U32, u32)                                                                               \
    M(S64, s64, U32, u32) M(U64, u64, S32, s32) M(F32, f32, S32, s32) M(F32, f32, U32, u32)             \
        M(F64, f64, S32, s32) M(F64, f64, U32, u32) M(F64, f64, F32, f32) M(F32, f32, F64, f64)         \
            M(U32, u32, U16, u16) M(S32, s32, S16, s16) M(U16, u16, U32, u32) M(U64, u64, S64, s64)     \
                M(S64, s64, U64, u64) M(F64, f64, S64, s64) M(U64, u64, U16, u16) M(S64, s64, S16, s16) \
                    M(F32, f32, S64, s64)
/* clang-format on */
#define DEFINE(to, T, from, F) LANEWISE(cvt_##to##_##from, T, LOAD1(F), a[i])
PAIRS(DEFINE)

static op_fn *const table[T_COUNT][T_COUNT] = {
#define ENTRY(to, T, from, F) [T_##to][T_##from] = cvt_##to##_##from,
    PAIRS(ENTRY)};

op_fn *convert_fast(enum type to, enum type from)
{
    return table[to][from];
}
