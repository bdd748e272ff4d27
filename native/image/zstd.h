/* Zstandard unpacking, by a library that the machine may lack. */
#ifndef CALABASH_IMAGE_ZSTD_H
#define CALABASH_IMAGE_ZSTD_H

#include "image/image.h"

bool zstd_available(void);
/* Return the bytes written, or 0 if malformed or without the library. */
size_t unpack_zstd(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t capacity);

#endif
