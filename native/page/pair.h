/*
 * The 16-byte compare-and-swap of the control pages: two words that change as one.
 *
 * x86-64 has the instruction. aarch64 has it from ARMv8.1 on (LSE: Grace, and every recent server), which is
 * detected at run time. Without it, a pair is loaded and stored exclusively, and any write to the same line,
 * for instance by a tenant that does nothing else, makes the store fail. That loop is therefore bounded, and
 * the result "false" means there: not done, perhaps for no reason. Callers retry as often as they can afford.
 *
 * All operations acquire and release: what was written before a swap is visible to a reader of the swapped
 * pair.
 */
#ifndef CALABASH_PAIR_H
#define CALABASH_PAIR_H

#include <stdbool.h>
#include <stdint.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the 16-byte compare-and-swap of this file is written for x86-64 and aarch64"
#endif

#define CB_PAIR_TRIES 32u

struct cb_pair {
    uint64_t low;
    uint64_t high;
};

#ifdef __x86_64__
static inline bool cb_pair_swap(volatile void *address, struct cb_pair *expected, struct cb_pair desired)
{
    bool done;
    __asm__ __volatile__("lock cmpxchg16b %1"
                         : "=@ccz"(done), "+m"(*(volatile struct cb_pair *)address), "+a"(expected->low),
                           "+d"(expected->high)
                         : "b"(desired.low), "c"(desired.high)
                         : "memory");
    return done;
}
#else
#include <sys/auxv.h>

#define CB_HWCAP_ATOMICS (1ul << 8) /* HWCAP_ATOMICS of <asm/hwcap.h> */

static inline bool cb_pair_at_once(void)
{
    static unsigned char known; /* 1: no, 2: yes */
    unsigned char answer = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (answer == 0) {
        answer = getauxval(AT_HWCAP) & CB_HWCAP_ATOMICS ? 2 : 1;
        __atomic_store_n(&known, answer, __ATOMIC_RELAXED);
    }
    return answer == 2;
}

static inline bool cb_pair_swap_at_once(volatile void *address, struct cb_pair *expected,
                                        struct cb_pair desired)
{
    struct cb_pair wanted = *expected;
    register uint64_t low __asm__("x0") = expected->low;
    register uint64_t high __asm__("x1") = expected->high;
    register uint64_t next_low __asm__("x2") = desired.low;
    register uint64_t next_high __asm__("x3") = desired.high;
    __asm__ __volatile__(".arch_extension lse\n"
                         "caspal %0, %1, %3, %4, %2"
                         : "+r"(low), "+r"(high), "+Q"(*(volatile struct cb_pair *)address)
                         : "r"(next_low), "r"(next_high)
                         : "memory");
    expected->low = low;
    expected->high = high;
    return low == wanted.low && high == wanted.high;
}

/* The value found instead may be torn, as with cb_pair_read: only a store that succeeds proves the load. */
static inline bool cb_pair_swap_in_steps(volatile void *address, struct cb_pair *expected,
                                         struct cb_pair desired)
{
    struct cb_pair wanted = *expected;
    for (unsigned i = 0; i < CB_PAIR_TRIES; i++) {
        uint64_t low, high;
        uint32_t failed;
        __asm__ __volatile__("   ldaxp %0, %1, %3\n"
                             "   cmp %0, %4\n"
                             "   ccmp %1, %5, #0, eq\n"
                             "   b.ne 1f\n"
                             "   stlxp %w2, %6, %7, %3\n"
                             "   b 2f\n"
                             "1: clrex\n"
                             "   mov %w2, #1\n"
                             "2:\n"
                             : "=&r"(low), "=&r"(high), "=&r"(failed),
                               "+Q"(*(volatile struct cb_pair *)address)
                             : "r"(wanted.low), "r"(wanted.high), "r"(desired.low), "r"(desired.high)
                             : "cc", "memory");
        expected->low = low;
        expected->high = high;
        if (failed == 0) return true;
        if (low != wanted.low || high != wanted.high) return false;
    }
    return false;
}

static inline bool cb_pair_swap(volatile void *address, struct cb_pair *expected, struct cb_pair desired)
{
    return cb_pair_at_once() ? cb_pair_swap_at_once(address, expected, desired)
                             : cb_pair_swap_in_steps(address, expected, desired);
}
#endif

static inline struct cb_pair cb_pair_read(volatile const void *address)
{
    const volatile uint64_t *words = address;
    struct cb_pair pair;
    pair.high = __atomic_load_n(&words[1], __ATOMIC_ACQUIRE);
    pair.low = __atomic_load_n(&words[0], __ATOMIC_ACQUIRE);
    return pair; /* may be torn; then the swap that uses it fails */
}

#endif
