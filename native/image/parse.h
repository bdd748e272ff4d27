/* The readers of the kinds of code, for image.c, and the table that they fill. */
#ifndef CALABASH_IMAGE_PARSE_H
#define CALABASH_IMAGE_PARSE_H

#include "image/image.h"

/* table.c */
struct entry_point *image_add_entry(struct image *i, const char *name, size_t length);
bool image_add_global(struct image *i, const char *name, size_t length, uint64_t size);

CUresult ptx_parse(const char *text, size_t length, uint32_t device_sm, struct image *image);
CUresult cubin_parse(const uint8_t *data, size_t limit, struct image *image);

/* zstd.c. Returns the bytes written, or 0 when malformed or without the library. */
bool zstd_available(void);
size_t unpack_zstd(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t room);

#endif
