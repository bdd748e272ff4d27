/*
 * Memory that both ends have at the same addresses. Each end keeps what both last agreed on; what differs from that has been
 * written here, and travels word by word (4 bytes), so that what the other end wrote beside it stays.
 */
#ifndef CALABASH_REMOTE_TWIN_H
#define CALABASH_REMOTE_TWIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cb_twin {
    uint64_t address, bytes;
    uint8_t *agreed;
    bool sparse; /* a page that the kernel does not have was never written */
};

/* Both ends have zeros. False: no memory. */
bool cb_twin_make(struct cb_twin *t, uint64_t address, uint64_t bytes, bool sparse);
void cb_twin_end(struct cb_twin *t);
/* What was written here from offset *at on, as far as it fits; the other end will have agreed. *at is t->bytes when that is
 * all. `room` is at least CB_TWIN_RECORD. */
size_t cb_twin_changes(struct cb_twin *t, uint64_t *at, uint8_t *out, size_t room);
/* What the other end wrote. False: it is malformed, or of memory that `of` does not know. */
bool cb_twin_apply(const uint8_t *data, size_t bytes, struct cb_twin *(*of)(uint64_t address));

#define CB_TWIN_BLOCK  4096u
#define CB_TWIN_RECORD (16u + CB_TWIN_BLOCK / 32 + CB_TWIN_BLOCK)

#endif
