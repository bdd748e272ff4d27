/* Dot products of bytes and half-words. */
#include "sim/ptx/alu.h"
#include "sim/ptx/lanes.h"

#define BYTE(T, v, k) ((s32)(T)(u8)((v) >> (8 * (k))))
#define HALF(T, v, k) ((s32)(T)(u16)((v) >> (16 * (k))))
#define DP4A(name, A, B)                                                                              \
    LANEWISE(name, u32, LOAD3(u32, u32, u32),                                                         \
             c[i] + (u32)(BYTE(A, a[i], 0) * BYTE(B, b[i], 0) + BYTE(A, a[i], 1) * BYTE(B, b[i], 1) + \
                          BYTE(A, a[i], 2) * BYTE(B, b[i], 2) + BYTE(A, a[i], 3) * BYTE(B, b[i], 3)))
DP4A(dp4a_uu, u8, u8)
DP4A(dp4a_us, u8, s8)
DP4A(dp4a_su, s8, u8)
DP4A(dp4a_ss, s8, s8)
#define DP2A(name, A, B, A8, B8, base)   \
    LANEWISE(                            \
        name, u32, LOAD3(u32, u32, u32), \
        c[i] + (u32)(HALF(A, a[i], 0) * BYTE(B8, b[i], base) + HALF(A, a[i], 1) * BYTE(B8, b[i], base + 1)))
DP2A(dp2a_lo_uu, u16, u16, u8, u8, 0)
DP2A(dp2a_lo_us, u16, s16, u8, s8, 0)
DP2A(dp2a_lo_su, s16, u16, s8, u8, 0)
DP2A(dp2a_lo_ss, s16, s16, s8, s8, 0)
DP2A(dp2a_hi_uu, u16, u16, u8, u8, 2)
DP2A(dp2a_hi_us, u16, s16, u8, s8, 2)
DP2A(dp2a_hi_su, s16, u16, s8, u8, 2)
DP2A(dp2a_hi_ss, s16, s16, s8, s8, 2)

#define PAIR(name, u, s) static op_fn *const name[T_COUNT] = {[T_U32] = u, [T_S32] = s};
PAIR(dp4a_u, dp4a_uu, dp4a_us)
PAIR(dp4a_s, dp4a_su, dp4a_ss)
PAIR(dp2a_lo_u, dp2a_lo_uu, dp2a_lo_us)
PAIR(dp2a_lo_s, dp2a_lo_su, dp2a_lo_ss)
PAIR(dp2a_hi_u, dp2a_hi_uu, dp2a_hi_us)
PAIR(dp2a_hi_s, dp2a_hi_su, dp2a_hi_ss)

const struct alu alu_video[] = {
    {"dp4a.u32", "tttt", dp4a_u, NULL},
    {"dp4a.s32", "tttt", dp4a_s, NULL},
    {"dp2a.lo.u32", "tttt", dp2a_lo_u, NULL},
    {"dp2a.lo.s32", "tttt", dp2a_lo_s, NULL},
    {"dp2a.hi.u32", "tttt", dp2a_hi_u, NULL},
    {"dp2a.hi.s32", "tttt", dp2a_hi_s, NULL},
    {0},
};
