/*
 * The name of an image of code: BLAKE2b with 32 bytes. Whoever has the name of an image has that image and no other, so
 * the hash must be one that nobody can find a second image for; this one is such a hash, fast in plain C, and short.
 */
#ifndef CALABASH_REMOTE_HASH_H
#define CALABASH_REMOTE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define CB_HASH_BYTES 32u

void cb_hash(const void *data, size_t bytes, uint8_t out[CB_HASH_BYTES]);

#endif
