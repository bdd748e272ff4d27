/*
 * Drivers take addresses for device memory from those of their process that are free, the highest first. So all that are not
 * this session's own are taken before: without memory, and never touched.
 */
#include "remote/worker/span.h"

#include "remote/wire/arena.h"

#include <stddef.h>
#include <sys/mman.h>

#define LOWEST   (1u << 20)
#define SMALLEST 4096u
#define PIECE    (2u << 20) /* below, the kernel goes only when nothing is left above */
#define NOTHING  (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static uint64_t first(void)
{
    return cb_span_first(cb_span_member);
}

/* Free addresses of that size, as the kernel gives them, until it gives ours. */
static void take_above(uint64_t bytes)
{
    for (;;) {
        void *p = mmap(NULL, bytes, PROT_NONE, NOTHING, -1, 0);
        if (p == MAP_FAILED) return;
        uint64_t at = (uint64_t)p;
        if (at >= first() + CB_SPAN_BYTES) continue;
        munmap(p, bytes);
        return;
    }
}

static void take_between(uint64_t from, uint64_t to)
{
    for (uint64_t bytes = 1ull << 40, at = from; at < to;) {
        uint64_t part = bytes < to - at ? bytes : to - at;
        void *p = mmap((void *)at, part, PROT_NONE, NOTHING | MAP_FIXED_NOREPLACE, -1, 0);
        if (p == MAP_FAILED && bytes > PIECE) {
            bytes /= 2; /* something is there */
            continue;
        }
        if (p != MAP_FAILED && p != (void *)at) munmap(p, part); /* an old kernel */
        at += part;
        bytes = 1ull << 40;
    }
}

void cb_span_keep_apart(uint8_t member)
{
    cb_span_member = member;
    for (uint64_t bytes = 1ull << 43; bytes >= SMALLEST; bytes /= 2)
        take_above(bytes);
    take_between(LOWEST, CB_ARENA_BASE);
    take_between(CB_ARENA_BASE + CB_ARENA_BYTES, first());
}
