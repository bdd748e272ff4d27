/* Relaxed atomic access to shared words, for the limiter's own files. */
#ifndef CALABASH_SHIM_COMPUTE_WORDS_H
#define CALABASH_SHIM_COMPUTE_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#define LOAD(p)     __atomic_load_n((p), __ATOMIC_RELAXED)
#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define ADD(p, v)   __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)

/* Return true if this table entry has the key already, or was free and got it. */
static inline bool cb_key_take(uint64_t *slot, uint64_t key)
{
    uint64_t found = LOAD(slot);
    if (found == key) return true;
    if (found != 0) return false;
    return __atomic_compare_exchange_n(slot, &found, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
           found == key;
}

#endif
