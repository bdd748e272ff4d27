/*
 * Images that the session has received, by their hash. The most recent stay in memory; with CALABASH_IMAGES
 * they also outlive the session (see image_store.h).
 */
#ifndef CALABASH_REMOTE_IMAGES_H
#define CALABASH_REMOTE_IMAGES_H

#include "remote/wire/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Find the image of this hash and size, followed by a zero byte; valid until the next one is put. NULL: absent.
 */
const void *cb_images_find(const uint8_t hash[CB_HASH_BYTES], size_t bytes);
/* Store an image and take ownership of it (from malloc, followed by a zero byte). */
void cb_images_put(const uint8_t hash[CB_HASH_BYTES], void *data, size_t bytes);

#endif
