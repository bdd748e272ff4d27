/* Additions with carry; every lane has a carry bit. */
#include "sim/ptx/alu.h"
#include "sim/ptx/lanes.h"

#define CARRIED(name, T, W, bits, loads, takes, gives, e)                       \
    static HANDLER(name)                                                        \
    {                                                                           \
        loads;                                                                  \
        T *d = out(w, o->d), t[LANES];                                          \
        u8 carry[LANES];                                                        \
        EACH_LANE                                                               \
        {                                                                       \
            W in_ = (takes) ? w->carry >> i & 1 : 0;                            \
            W sum = (e);                                                        \
            (void)in_;                                                          \
            t[i] = (T)sum;                                                      \
            carry[i] = (u8)((sum >> bits) & 1);                                 \
        }                                                                       \
        keep(d, t, sizeof *d, mask);                                            \
        if (gives) w->carry = (w->carry & ~mask) | (gather_bits(carry) & mask); \
        return o + 1;                                                           \
    }
#define BOTH(name, takes, gives, terms, e32, e64)                                 \
    CARRIED(name##_32, u32, u64, 32, terms(u32), takes, gives, e32)               \
    CARRIED(name##_64, u64, unsigned __int128, 64, terms(u64), takes, gives, e64) \
    static op_fn *const name##_table[T_COUNT] = {                                 \
        [T_U32] = name##_32, [T_S32] = name##_32, [T_U64] = name##_64,            \
        [T_S64] = name##_64, [T_B32] = name##_32, [T_B64] = name##_64};
#define TWO_OF(T)   LOAD2(T, T)
#define THREE_OF(T) LOAD3(T, T, T)
typedef unsigned __int128 u128;
#define LOW32  ((u64)(u32)((u64)a[i] * b[i]))
#define HIGH32 ((u64)a[i] * b[i] >> 32)
#define LOW64  ((u128)(u64)((u128)a[i] * b[i]))
#define HIGH64 ((u128)a[i] * b[i] >> 64)
BOTH(add_cc, false, true, TWO_OF, (u64)a[i] + b[i], (u128)a[i] + b[i])
BOTH(addc, true, false, TWO_OF, (u64)a[i] + b[i] + in_, (u128)a[i] + b[i] + in_)
BOTH(addc_cc, true, true, TWO_OF, (u64)a[i] + b[i] + in_, (u128)a[i] + b[i] + in_)
BOTH(sub_cc, false, true, TWO_OF, (u64)a[i] - b[i], (u128)a[i] - b[i])
BOTH(subc, true, false, TWO_OF, (u64)a[i] - b[i] - in_, (u128)a[i] - b[i] - in_)
BOTH(subc_cc, true, true, TWO_OF, (u64)a[i] - b[i] - in_, (u128)a[i] - b[i] - in_)
BOTH(mad_lo_cc, false, true, THREE_OF, LOW32 + c[i], LOW64 + c[i])
BOTH(madc_lo, true, false, THREE_OF, LOW32 + c[i] + in_, LOW64 + c[i] + in_)
BOTH(madc_lo_cc, true, true, THREE_OF, LOW32 + c[i] + in_, LOW64 + c[i] + in_)
BOTH(mad_hi_cc, false, true, THREE_OF, HIGH32 + c[i], HIGH64 + c[i])
BOTH(madc_hi, true, false, THREE_OF, HIGH32 + c[i] + in_, HIGH64 + c[i] + in_)
BOTH(madc_hi_cc, true, true, THREE_OF, HIGH32 + c[i] + in_, HIGH64 + c[i] + in_)

const struct alu alu_carry[] = {
    {"add.cc", "ttt", add_cc_table, NULL},
    {"addc", "ttt", addc_table, NULL},
    {"addc.cc", "ttt", addc_cc_table, NULL},
    {"sub.cc", "ttt", sub_cc_table, NULL},
    {"subc", "ttt", subc_table, NULL},
    {"subc.cc", "ttt", subc_cc_table, NULL},
    {"mad.lo.cc", "tttt", mad_lo_cc_table, NULL},
    {"madc.lo", "tttt", madc_lo_table, NULL},
    {"madc.lo.cc", "tttt", madc_lo_cc_table, NULL},
    {"mad.hi.cc", "tttt", mad_hi_cc_table, NULL},
    {"madc.hi", "tttt", madc_hi_table, NULL},
    {"madc.hi.cc", "tttt", madc_hi_cc_table, NULL},
    {0},
};
