/*
 * Mirrored memory: memory that both ends have at the same addresses. Each end keeps a copy of the last agreed
 * contents; words (4 bytes) that differ from it were written at this end and are sent, so that what the other
 * end wrote beside them stays.
 */
#ifndef CALABASH_REMOTE_WIRE_MIRROR_H
#define CALABASH_REMOTE_WIRE_MIRROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cb_mirror {
    uint64_t address, bytes;
    uint8_t *agreed;
    bool sparse; /* a page that the kernel does not have was never written */
};

/* Both ends start with zeros. Return false if there is no memory. */
bool cb_mirror_make(struct cb_mirror *t, uint64_t address, uint64_t bytes, bool sparse);
void cb_mirror_end(struct cb_mirror *t);
/*
 * Put the changes of this end from offset *at on, as far as they fit; the other end will have agreed. *at is
 * t->bytes when that is all. `capacity` is at least CB_MIRROR_RECORD.
 */
size_t cb_mirror_changes(struct cb_mirror *t, uint64_t *at, uint8_t *out, size_t capacity);
/* Apply changes of the other end. Return false if they are malformed, or of memory that `of` does not find. */
bool cb_mirror_apply(const uint8_t *data, size_t bytes, struct cb_mirror *(*of)(uint64_t address));

#define CB_MIRROR_BLOCK  4096u
#define CB_MIRROR_RECORD (16u + CB_MIRROR_BLOCK / 32 + CB_MIRROR_BLOCK)

#endif
