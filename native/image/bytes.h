/* Length of an image that a program passes by address only. */
#ifndef CALABASH_IMAGE_BYTES_H
#define CALABASH_IMAGE_BYTES_H

#include <stddef.h>

/*
 * Bytes of an image; `limit`: most that it can have, 0 if unknown. A wrapper around a fatbin is removed: *image
 * then points to its contents. Text includes its terminating zero. 0: not an image.
 */
size_t image_bytes(const void **image, size_t limit);

#endif
