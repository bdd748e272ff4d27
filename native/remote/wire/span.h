/*
 * A span: one program, several servers, a session with each. The sessions have numbers, which are in the handles that they
 * give, and a range of addresses each, so that a handle and a pointer tell whose they are.
 */
#ifndef CALABASH_REMOTE_SPAN_H
#define CALABASH_REMOTE_SPAN_H

#include <stdbool.h>
#include <stdint.h>

#define CB_SPAN_MAX 16u
#define CB_SPAN_ALL 0xffu /* in a handle: of the program's, one for all sessions */
#define CB_SPAN_ADDRESSES \
    0x300000000000ull              /* of device memory of the first, below where programs are loaded */
#define CB_SPAN_BYTES (2ull << 40) /* of each */

/* Of the session at this end, from 1 on; 0: it is the only one. */
extern uint8_t cb_span_member;

static inline uint64_t cb_span_first(unsigned member)
{
    return CB_SPAN_ADDRESSES + (member - 1) * CB_SPAN_BYTES;
}

/* Whether device memory there may be this session's. */
static inline bool cb_span_holds(uint64_t address, uint64_t bytes)
{
    uint64_t at = address - cb_span_first(cb_span_member);
    return !cb_span_member || (at < CB_SPAN_BYTES && bytes <= CB_SPAN_BYTES - at);
}

#endif
