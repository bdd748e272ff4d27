/* A spin lock between the threads of one process. */
#ifndef CALABASH_SHIM_SPIN_H
#define CALABASH_SHIM_SPIN_H

/* Lock held for a few instructions; a forked child starts with all of them open. */
typedef struct {
    int held;
} cb_spin;
void cb_spin_wait(cb_spin *spin);
static inline void cb_lock(cb_spin *spin)
{
    if (__builtin_expect(__atomic_exchange_n(&spin->held, 1, __ATOMIC_ACQUIRE), 0)) cb_spin_wait(spin);
}
static inline void cb_unlock(cb_spin *spin)
{
    __atomic_store_n(&spin->held, 0, __ATOMIC_RELEASE);
}

static inline void cb_relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#else
    __asm__ __volatile__("yield");
#endif
}

#endif
