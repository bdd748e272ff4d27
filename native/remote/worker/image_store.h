/*
 * Image store: a file of code images, one after another, each with its hash. CALABASH_IMAGES names it, by its
 * path or as a descriptor that is open already (fd:NUMBER); without it there is no store. The file belongs to
 * one tenant, and contents read from it are used only if they have the requested hash. If the next image would
 * make it longer than CALABASH_IMAGES_MAX bytes, it is emptied and started again.
 */
#ifndef CALABASH_REMOTE_WORKER_IMAGE_STORE_H
#define CALABASH_REMOTE_WORKER_IMAGE_STORE_H

#include "remote/wire/hash.h"

#include <stdbool.h>
#include <stddef.h>

/* Open or create the file, before the process gives up creating files. Once; return false if there is none. */
bool cb_image_store_open(void);
/* Read an image, from malloc, followed by a zero byte. NULL: absent, or the store is being written to. */
void *cb_image_store_read(const uint8_t hash[CB_HASH_BYTES], size_t bytes);
/* A failure is not reported: the image is then sent again another time. */
void cb_image_store_write(const uint8_t hash[CB_HASH_BYTES], const void *data, size_t bytes);

#endif
