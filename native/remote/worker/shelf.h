/*
 * Images in a file, one after another, each with its hash: CALABASH_IMAGES names it, by its path or as a descriptor that is
 * open already (fd:NUMBER); there is no shelf without. The file is its tenant's alone, and what is read from it is used only
 * when it has the hash that was asked for. When the next image would make it longer than CALABASH_IMAGES_MAX bytes it is
 * emptied, and begins again.
 */
#ifndef CALABASH_REMOTE_SHELF_H
#define CALABASH_REMOTE_SHELF_H

#include "remote/wire/hash.h"

#include <stdbool.h>
#include <stddef.h>

/* Open the file, or make it, before the process gives up making files. Once; false: there is none. */
bool cb_shelf_open(void);
/* From malloc, with a zero behind it. NULL: it is not there, or the shelf is being written to. */
void *cb_shelf_read(const uint8_t hash[CB_HASH_BYTES], size_t bytes);
/* Nobody is told when it fails: the image is then sent again some day. */
void cb_shelf_write(const uint8_t hash[CB_HASH_BYTES], const void *data, size_t bytes);

#endif
