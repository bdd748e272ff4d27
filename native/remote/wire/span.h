/*
 * Spans: one program that uses several servers, with a session on each. The sessions have numbers, which are
 * part of the handles that they create, and an address range each, so that a handle and a pointer identify
 * their session.
 */
#ifndef CALABASH_REMOTE_SPAN_H
#define CALABASH_REMOTE_SPAN_H

#include <stdbool.h>
#include <stdint.h>

#define CB_SPAN_MAX 16u
#define CB_SPAN_ALL 0xffu /* in a handle: of the program itself, valid in all sessions */
#define CB_SPAN_ADDRESSES \
    0x300000000000ull              /* device memory of the first session, below where programs are loaded */
#define CB_SPAN_BYTES (2ull << 40) /* of each */

/* Number of the session at this end, from 1 on; 0: the program has only one session. */
extern uint8_t cb_span_member;

static inline uint64_t cb_span_first(unsigned member)
{
    return CB_SPAN_ADDRESSES + (member - 1) * CB_SPAN_BYTES;
}

/* Return true if device memory at this address may belong to this session. */
static inline bool cb_span_holds(uint64_t address, uint64_t bytes)
{
    uint64_t at = address - cb_span_first(cb_span_member);
    return !cb_span_member || (at < CB_SPAN_BYTES && bytes <= CB_SPAN_BYTES - at);
}

#endif
