/* Conversions of 16-bit floating numbers, and of any other layout, to those of the machine. */
#ifndef CALABASH_SIM_PTX_HALF_FLOAT_H
#define CALABASH_SIM_PTX_HALF_FLOAT_H

#include <stdint.h>

float half_to_float(uint16_t h);
uint16_t half_from_float(float f); /* to the nearest, ties to even */
float bfloat_to_float(uint16_t b);
uint16_t bfloat_from_float(float f);

/* A number with so many bits of exponent and fraction, rounded as `mode` says: 'n' nearest, 'z' to zero, 'm' down, 'p' up,
 * 'a' nearest with ties away from zero. */
uint32_t narrow_from_double(double v, int exponent_bits, int fraction_bits, char mode);

#endif
