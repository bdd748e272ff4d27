/* The reader of code images of every kind. */
#ifndef CALABASH_IMAGE_PARSE_H
#define CALABASH_IMAGE_PARSE_H

#include "image/image.h"

/* Parse an image. `limit` bounds the reading when the caller knows the size (0: unknown, trust the image's own
 * headers). A fatbin gives the cubin of the device's own architecture when there is one, else the youngest
 * PTX that the device can take. */
CUresult image_parse(const void *data, size_t limit, uint32_t device_sm, struct image **out);

#endif
