/* Reader of the declarations in PTX text. */
#ifndef CALABASH_IMAGE_PTX_H
#define CALABASH_IMAGE_PTX_H

#include "image/image.h"

CUresult ptx_parse(const char *text, size_t length, uint32_t device_sm, struct image *image);

#endif
