/* How long an image is that a program gives by address alone. */
#ifndef CALABASH_IMAGE_BYTES_H
#define CALABASH_IMAGE_BYTES_H

#include <stddef.h>

/* Bytes of an image; `limit`: how many there are at most, 0 when that is not known. A wrapper around a fatbin is taken off:
 * *image then points to what is inside. Text counts its zero. 0: it is no image. */
size_t image_bytes(const void **image, size_t limit);

#endif
