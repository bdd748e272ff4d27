/* Conversions of short floating-point formats. */
#include "sim/ptx/half_float.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 0x3ffu;
    if (e == 31) return float_of(sign | 0x7f800000u | m << 13);
    if (e) return float_of(sign | (e + 112) << 23 | m << 13);
    float small = (float)m * 0x1p-24f;
    return sign ? -small : small;
}

uint16_t half_from_float(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return 0x7fffu;
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* a multiple of 2^-24 */
        float scaled = float_of(a) * 0x1p24f;
        uint32_t whole = (uint32_t)scaled;
        float rest = scaled - (float)whole;
        whole += rest > 0.5f || (rest == 0.5f && (whole & 1));
        return (uint16_t)(sign | whole);
    }
    uint32_t r = a - 0x38000000u;
    r += 0xfffu + (r >> 13 & 1);
    return (uint16_t)(sign | r >> 13);
}

float bfloat_to_float(uint16_t b)
{
    return float_of((uint32_t)b << 16);
}

uint16_t bfloat_from_float(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static double round_with_mode(double v, char mode)
{
    double down = floor(v), rest = v - down;
    switch (mode) {
    case 'z':
        return trunc(v);
    case 'm':
        return down;
    case 'p':
        return ceil(v);
    case 'a':
        return round(v);
    default:
        if (rest > 0.5 || (rest == 0.5 && fmod(down, 2) != 0)) down += 1;
        return down;
    }
}

uint32_t narrow_from_double(double v, int exponent_bits, int fraction_bits, char mode)
{
    int bias = (1 << (exponent_bits - 1)) - 1, e;
    uint32_t sign = signbit(v) ? 1u << (exponent_bits + fraction_bits) : 0;
    uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
    if (isnan(v)) return infinity | ((1u << fraction_bits) - 1);
    if (v == 0) return sign;
    if (isinf(v)) return sign | infinity;
    frexp(v, &e);
    e -= 1;
    if (e < 1 - bias) e = 1 - bias;
    double whole = fabs(round_with_mode(ldexp(v, fraction_bits - e), mode));
    if (whole >= ldexp(1, fraction_bits + 1)) {
        whole /= 2;
        e++;
    }
    if (e > bias) {
        int away = mode == 'n' || mode == 'a' || (mode == 'p' && !sign) || (mode == 'm' && sign);
        return sign | (away ? infinity : infinity - 1);
    }
    uint32_t m = (uint32_t)whole, one = 1u << fraction_bits;
    return sign | (m < one ? m : (uint32_t)(e + bias) << fraction_bits | (m - one));
}
