/*
 * Reservation of addresses. Drivers place device memory at free addresses of their process, the highest first.
 * Therefore all addresses outside this session's range are reserved beforehand: without memory, and never
 * accessed.
 */
#include "remote/worker/address_reservation.h"

#include "remote/wire/arena.h"

#include <stddef.h>
#include <sys/mman.h>

#define LOWEST_ADDRESS (1u << 20)
#define SMALLEST_BYTES 4096u
#define PIECE_BYTES    (2u << 20) /* below it, the kernel returns addresses only if nothing is left above */
#define RESERVE_FLAGS  (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static uint64_t range_first(void)
{
    return cb_span_first(cb_span_member);
}

/* Map free addresses of that size, as the kernel returns them, until it returns some of our range. */
static void reserve_above(uint64_t bytes)
{
    for (;;) {
        void *p = mmap(NULL, bytes, PROT_NONE, RESERVE_FLAGS, -1, 0);
        if (p == MAP_FAILED) return;
        uint64_t at = (uint64_t)p;
        if (at >= range_first() + CB_SPAN_BYTES) continue;
        munmap(p, bytes);
        return;
    }
}

static void reserve_between(uint64_t from, uint64_t to)
{
    for (uint64_t bytes = 1ull << 40, at = from; at < to;) {
        uint64_t part = bytes < to - at ? bytes : to - at;
        void *p = mmap((void *)at, part, PROT_NONE, RESERVE_FLAGS | MAP_FIXED_NOREPLACE, -1, 0);
        if (p == MAP_FAILED && bytes > PIECE_BYTES) {
            bytes /= 2; /* another mapping is there */
            continue;
        }
        if (p != MAP_FAILED && p != (void *)at) munmap(p, part); /* a kernel without MAP_FIXED_NOREPLACE */
        at += part;
        bytes = 1ull << 40;
    }
}

void cb_span_reserve_addresses(uint8_t member)
{
    cb_span_member = member;
    for (uint64_t bytes = 1ull << 43; bytes >= SMALLEST_BYTES; bytes /= 2)
        reserve_above(bytes);
    reserve_between(LOWEST_ADDRESS, CB_ARENA_BASE);
    reserve_between(CB_ARENA_BASE + CB_ARENA_BYTES, range_first());
}
