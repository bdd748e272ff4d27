/*
 * Address range of host memory that devices may use: the same addresses at both ends, far from all other
 * mappings of either.
 */
#ifndef CALABASH_REMOTE_ARENA_H
#define CALABASH_REMOTE_ARENA_H

#include "remote/wire/span.h"

#define CB_ARENA_BASE  (0x200000000000ull + ((uint64_t)cb_span_member << 40))
#define CB_ARENA_BYTES (1ull << 40)
#define CB_MIRRORS_MAX 4096u
#define CB_CHANGES_MAX (512u << 10) /* of mirrored memory, in one frame */

static inline bool cb_in_arena(uint64_t address, uint64_t bytes)
{
    return address - CB_ARENA_BASE < CB_ARENA_BYTES && bytes <= CB_ARENA_BYTES - (address - CB_ARENA_BASE);
}

#endif
