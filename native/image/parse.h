/* Reader of code images of every kind. */
#ifndef CALABASH_IMAGE_PARSE_H
#define CALABASH_IMAGE_PARSE_H

#include "image/image.h"

/*
 * Parse an image. `limit` bounds the reading if the caller knows the size (0: unknown, trust the image's own
 * headers). Of a fatbin, choose the cubin of the device's own architecture if there is one, else the newest PTX
 * that the device supports.
 */
CUresult image_parse(const void *data, size_t limit, uint32_t device_sm, struct image **out);

#endif
