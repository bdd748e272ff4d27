/* Waiting of locked processes; process_gate.h has the theory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/process_gate.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint32_t *run_word_of(const struct sim *s, uint32_t slot)
{
    return &s->node->proc[slot % SIM_PROCS_MAX].run;
}

enum sim_run sim_gate_state(const struct sim *s, uint32_t slot)
{
    return (enum sim_run)__atomic_load_n(run_word_of(s, slot), __ATOMIC_ACQUIRE);
}

bool sim_gate_change(struct sim *s, uint32_t slot, enum sim_run from, enum sim_run to)
{
    uint32_t seen = from, *word = run_word_of(s, slot);
    if (!__atomic_compare_exchange_n(word, &seen, (uint32_t)to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return false;
    if (to == SIM_RUNNING) syscall(SYS_futex, word, FUTEX_WAKE, 0x7FFFFFFF, NULL, NULL, 0);
    return true;
}

void sim_gate_wait(struct sim *s)
{
    uint32_t *word = run_word_of(s, (uint32_t)s->slot);
    for (uint32_t seen; (seen = __atomic_load_n(word, __ATOMIC_ACQUIRE)) != SIM_RUNNING;)
        syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}
