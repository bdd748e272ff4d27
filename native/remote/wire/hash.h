/*
 * Hash that names an image of code: BLAKE2b with 32 bytes. A name must identify exactly one image, so the hash
 * must be collision-resistant; BLAKE2b is, and its code is short and fast in plain C.
 */
#ifndef CALABASH_REMOTE_HASH_H
#define CALABASH_REMOTE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define CB_HASH_BYTES 32u

void cb_hash(const void *data, size_t bytes, uint8_t out[CB_HASH_BYTES]);

#endif
