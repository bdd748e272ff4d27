/*
 * Transactions that add bytes to and remove bytes from the two counters of a device: the container's and the
 * process's.
 *
 * Theory of operation. A reservation changes two words that are not adjacent: usage.device[d].used_bytes (C)
 * and usage.proc[p].share[d].used_bytes (U). A process may be killed between the two stores, and the cleanup
 * must know whether C includes the bytes: a wrong guess leaks them for ever or lets other processes exceed the
 * cap.
 *
 * Therefore C carries a tag in the same 16-byte word: the last transaction as (slot p, low bits of its sequence
 * number, amount). A transaction is one 16-byte compare-and-swap {C, tag} -> {C + amount, new tag}; that is its
 * commit point. It is then applied to U by a second 16-byte compare-and-swap {U, n} -> {U + amount, n + 1},
 * which can succeed only once because the tag names n + 1. Before a process replaces a tag, it applies the
 * tagged transaction on behalf of its owner ("helping"). Hence at any instant at most one transaction per
 * device is committed and not applied, and the tag identifies it: after helping, U is exactly what process p
 * contributes to C, wherever a process was killed. To reap a dead process, run the transaction -U on its
 * behalf, repeatedly until U is 0; several reapers may race, die and start over.
 *
 * No locks are taken. A retry means that another process made progress or that this one was disturbed (pair.h).
 * Processes of a tenant may retry for as long as processes of the same tenant disturb them; the loops that the
 * agent runs are bounded (reap.h). The limit is checked against the very value that the compare-and-swap
 * replaces: C never exceeds the limit, not even for a moment, so no other process is refused because of a
 * reservation that fails.
 *
 * Amounts are multiples of 512 bytes, at most 2^39 of them (256 TiB) in either direction, so that a tag fits 64
 * bits: slot 10 bits, sequence 14 bits, amount 40 bits. The one remaining hazard is a reader that sleeps
 * through exactly 16384 transactions of one slot that end with equal C and an equal tag, unapplied at that very
 * moment.
 */
#ifndef CALABASH_CHARGE_H
#define CALABASH_CHARGE_H

#include "page/page.h"
#include "page/pair.h"

#include <stdbool.h>

#define CB_CHARGE_UNIT 512u
#define CB_CHARGE_MAX  ((((uint64_t)1 << 39) - 1) * CB_CHARGE_UNIT)

static inline uint64_t cb_tag(uint32_t slot, uint64_t sequence, int64_t units)
{
    return ((uint64_t)(slot & 1023u) << 54) | ((sequence & 16383u) << 40) |
           ((uint64_t)units & 0xFFFFFFFFFFull);
}

static inline int64_t cb_tag_bytes(uint64_t tag)
{
    return ((int64_t)(tag << 24) >> 24) * (int64_t)CB_CHARGE_UNIT;
}

/*
 * Apply the last committed transaction of the device to its owner's share, unless it has been applied already.
 * Return false if it may still be unapplied: call again. A tag must not be replaced before this returned true.
 */
static inline __attribute__((always_inline)) bool cb_charge_help(struct cb_usage *usage, uint32_t device,
                                                                 uint64_t tag)
{
    struct cb_usage_share *share = &usage->proc[tag >> 54].share[device];
    struct cb_pair seen = cb_pair_read(share);
    /*
     * A process that slept since it read the tag must not apply it: the sequence in a tag wraps, so an old tag
     * may look like the next transaction. A tag that is unchanged after the share was read is the last
     * transaction; the full comparison of that share then tells whether it has been applied.
     */
    if (__atomic_load_n(&usage->device[device].used_tag, __ATOMIC_ACQUIRE) != tag) return true;
    if (((seen.high + 1) & 16383u) != ((tag >> 40) & 16383u) || tag == 0) return true;
    struct cb_pair next = {.low = seen.low + (uint64_t)cb_tag_bytes(tag), .high = seen.high + 1};
    return cb_pair_swap(share, &seen, next);
}

/* Try once to move `bytes`, given the value read; the caller has helped `seen` and checked the limit. */
static inline bool cb_charge_try(struct cb_usage *usage, uint32_t slot, uint32_t device, struct cb_pair seen,
                                 uint64_t sequence, int64_t bytes)
{
    struct cb_pair next = {.low = seen.low + (uint64_t)bytes,
                           .high = cb_tag(slot, sequence + 1, bytes / (int64_t)CB_CHARGE_UNIT)};
    if (!cb_pair_swap(&usage->device[device].used_bytes, &seen, next)) return false;
    (void)cb_charge_help(usage, device, next.high);
    return true;
}

static inline uint64_t cb_round_unit(uint64_t bytes)
{
    return (bytes + CB_CHARGE_UNIT - 1) & ~(uint64_t)(CB_CHARGE_UNIT - 1);
}

/*
 * Add `bytes` (a multiple of the unit) if the counter then stays within `limit`. Return false if nothing was
 * changed.
 */
static inline bool cb_charge_add(struct cb_usage *usage, uint32_t slot, uint32_t device, uint64_t bytes,
                                 uint64_t limit)
{
    if (bytes > CB_CHARGE_MAX) return false;
    for (;;) {
        struct cb_pair seen = cb_pair_read(&usage->device[device].used_bytes);
        if (!cb_charge_help(usage, device, seen.high)) continue;
        uint64_t sequence = __atomic_load_n(&usage->proc[slot].share[device].sequence, __ATOMIC_ACQUIRE);
        if (seen.low > limit || bytes > limit - seen.low) {
            /* A torn or stale read must not cause a refusal: read again before refusing. */
            struct cb_pair again = cb_pair_read(&usage->device[device].used_bytes);
            if (again.low == seen.low && again.high == seen.high) return false;
            continue;
        }
        if (cb_charge_try(usage, slot, device, seen, sequence, (int64_t)bytes)) {
            uint64_t now = seen.low + bytes,
                     peak = __atomic_load_n(&usage->device[device].peak_bytes, __ATOMIC_RELAXED);
            while (now > peak && !__atomic_compare_exchange_n(&usage->device[device].peak_bytes, &peak, now,
                                                              true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            }
            return true;
        }
    }
}

/* Subtract `bytes`, at most what this process holds; return the amount subtracted. */
static inline uint64_t cb_charge_sub(struct cb_usage *usage, uint32_t slot, uint32_t device, uint64_t bytes)
{
    for (;;) {
        struct cb_pair seen = cb_pair_read(&usage->device[device].used_bytes);
        if (!cb_charge_help(usage, device, seen.high)) continue;
        struct cb_pair share = cb_pair_read(&usage->proc[slot].share[device]);
        uint64_t take = bytes < share.low ? bytes : share.low;
        if (take > seen.low) take = seen.low;
        if (take > CB_CHARGE_MAX) take = CB_CHARGE_MAX;
        take -= take % CB_CHARGE_UNIT;
        if (take == 0) {
            struct cb_pair again = cb_pair_read(&usage->device[device].used_bytes);
            if (again.low == seen.low && again.high == seen.high) return 0;
            continue;
        }
        if (cb_charge_try(usage, slot, device, seen, share.high, -(int64_t)take)) return take;
    }
}

#endif
