/* Reader of cubins. */
#ifndef CALABASH_IMAGE_CUBIN_H
#define CALABASH_IMAGE_CUBIN_H

#include "image/image.h"

CUresult cubin_parse(const uint8_t *data, size_t limit, struct image *image);

#endif
