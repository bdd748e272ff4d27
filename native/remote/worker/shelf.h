/*
 * A directory of images, one file each, named by its hash in hexadecimal digits. CALABASH_IMAGES names it; there is none
 * without. CALABASH_IMAGES_MAX bounds its bytes: those that were used longest ago leave first.
 */
#ifndef CALABASH_REMOTE_SHELF_H
#define CALABASH_REMOTE_SHELF_H

#include "remote/wire/hash.h"

#include <stdbool.h>
#include <stddef.h>

/* Open the directory ahead, before the process gives up opening what it likes. Once; false: there is none. */
bool cb_shelf_open(void);
/* From malloc, with a zero behind it. NULL: it is not there; one that is not what its name says is removed. */
void *cb_shelf_read(const uint8_t hash[CB_HASH_BYTES], size_t bytes);
/* Nobody is told when it fails: the image is then sent again some day. */
void cb_shelf_write(const uint8_t hash[CB_HASH_BYTES], const void *data, size_t bytes);

#endif
