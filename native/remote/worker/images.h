/*
 * Images that the session has got, by their hash. The youngest stay in memory; with a directory they also outlive the
 * session. The directory is its tenant's alone, and what is read from it is used only when it has the hash that was asked.
 */
#ifndef CALABASH_REMOTE_IMAGES_H
#define CALABASH_REMOTE_IMAGES_H

#include "remote/wire/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The image of this hash and size, with a zero behind it; it lives until the next one is put. NULL: it is not there. */
const void *cb_images_find(const uint8_t hash[CB_HASH_BYTES], size_t bytes);
/* Take it over (from malloc, with a zero behind it). */
void cb_images_put(const uint8_t hash[CB_HASH_BYTES], void *data, size_t bytes);

#endif
