/* Implementation of the agent's atomic operations on the control pages; see pagelib.h. */
#define _GNU_SOURCE
#pragma GCC visibility push(default)
#include "page/pagelib.h"
#pragma GCC visibility pop

#include "page/reap.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * A tenant may truncate its usage file at any moment; touching the page then raises SIGBUS. The agent serves
 * other tenants too, so the fault ends the call, not the process. The handler acts only during these calls: a
 * fault anywhere else is passed to the handler that was installed before.
 */
static __thread sigjmp_buf *volatile guard_jump;
static struct sigaction guard_previous_action;
static pthread_once_t guard_once = PTHREAD_ONCE_INIT;

static void guard_handle_fault(int number, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    if (guard_jump) siglongjmp(*guard_jump, 1);
    sigaction(number, &guard_previous_action,
              NULL); /* the instruction faults again and is handled by the previous action */
}

static void guard_install(void)
{
    struct sigaction action = {.sa_sigaction = guard_handle_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &guard_previous_action);
}

/* Evaluate to CALL, or to FALLBACK if the page is no longer mapped to file contents. */
#define GUARDED(type, fallback, call)             \
    __extension__({                               \
        sigjmp_buf here;                          \
        volatile type answer = (fallback);        \
        pthread_once(&guard_once, guard_install); \
        if (!sigsetjmp(here, 0)) {                \
            guard_jump = &here;                   \
            answer = (call);                      \
        }                                         \
        guard_jump = NULL;                        \
        answer;                                   \
    })

static int slot_reap(struct cb_usage *usage, uint32_t slot, uint32_t generation, int32_t pid,
                     uint64_t start_time)
{
    if (slot >= CB_PROCS_MAX) return 0;
    struct cb_usage_proc *proc = &usage->proc[slot];
    if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_FREE ||
        cb_proc_generation(proc) != generation || __atomic_load_n(&proc->pid, __ATOMIC_ACQUIRE) != pid)
        return 0;
    if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_LIVE &&
        __atomic_load_n(&proc->start_time, __ATOMIC_ACQUIRE) != start_time)
        return 0;
    if (!cb_reap_slot(usage, slot, generation)) return -1;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    __atomic_store_n(&usage->reaped_ns, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
                     __ATOMIC_RELAXED);
    return 1;
}

static int slot_set_host_pid(struct cb_usage *usage, uint32_t slot, uint32_t generation, int32_t host_pid)
{
    if (slot >= CB_PROCS_MAX) return 0;
    struct cb_usage_proc *proc = &usage->proc[slot];
    for (unsigned i = 0; i < CB_REAP_TRIES; i++) {
        struct cb_pair seen = cb_pair_read(&proc->state);
        if ((uint32_t)seen.low == CB_PROC_FREE || (uint32_t)(seen.low >> 32) != generation) return 0;
        struct cb_pair next = {.low = seen.low,
                               .high = (uint64_t)(uint32_t)host_pid << 32 | (uint32_t)seen.high};
        if (cb_pair_swap(&proc->state, &seen, next)) return 1;
    }
    return 0;
}

void cb_page_store64(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static void plan_store(struct cb_plan *to, struct cb_plan plan)
{
    __atomic_store_n(&to->from_ns, plan.from_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&to->start_ns, plan.start_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&to->end_ns, plan.end_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&to->period_ns, plan.period_ns, __ATOMIC_RELAXED);
}

void cb_page_set_gate(struct cb_limits_device *device, uint32_t gate, uint32_t neighbours,
                      const struct cb_plan *plan)
{
    uint32_t word = device->word | 1; /* odd already: its last writer died while writing */
    __atomic_store_n(&device->word, word, __ATOMIC_RELAXED);
    /* the odd word is visible before anything that is written next */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    if (plan != NULL) {
        if (device->gate != CB_GATE_TURN)
            plan_store(&device->previous, (struct cb_plan){0});
        else if (plan->from_ns > device->plan.from_ns)
            plan_store(&device->previous, device->plan);
        plan_store(&device->plan, *plan);
    }
    __atomic_store_n(&device->gate, gate, __ATOMIC_RELAXED);
    __atomic_store_n(&device->neighbours, neighbours, __ATOMIC_RELAXED);
    __atomic_store_n(&device->word, word + 1, __ATOMIC_RELEASE);
}

void cb_page_add_seen(struct cb_limits_device *device, uint64_t seen_ns, uint64_t unreported_ns)
{
    __atomic_store_n(&device->seen_ns, device->seen_ns + seen_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&device->unreported_ns, device->unreported_ns + unreported_ns, __ATOMIC_RELEASE);
}

void cb_page_charges(const struct cb_limits_device *device, uint64_t found[2])
{
    found[0] = __atomic_load_n(&device->unreported_ns, __ATOMIC_ACQUIRE);
    found[1] = __atomic_load_n(&device->seen_ns, __ATOMIC_RELAXED);
}

int cb_page_wake(uint32_t *word)
{
    long woken = syscall(SYS_futex, word, FUTEX_WAKE, 0x7FFFFFFF, NULL, NULL, 0);
    return woken >= 0 ? (int)woken : -errno;
}

int cb_page_reap(struct cb_usage *usage, uint32_t slot, uint32_t generation, int32_t pid, uint64_t start_time)
{
    return GUARDED(int, -1, slot_reap(usage, slot, generation, pid, start_time));
}

int cb_page_set_host_pid(struct cb_usage *usage, uint32_t slot, uint32_t generation, int32_t host_pid)
{
    return GUARDED(int, -1, slot_set_host_pid(usage, slot, generation, host_pid));
}
