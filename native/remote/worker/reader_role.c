#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/worker/reader_role.h"

#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 1024
#define IDLE_MAX    8
#define TURNS_LAST  256    /* commands after which threads are no longer considered to alternate */
#define PAUSE_NS    100000 /* an offer that is seen twice is given to another thread */
#define PAUSES_MAX  100    /* pauses without an offer, before the watching thread sleeps */
#define OFFER_GIVEN 1u

static struct {
    pthread_mutex_t lock;
    sem_t role;
    void *(*serve)(void *);
    unsigned int threads; /* all threads */
    unsigned int idle;    /* threads that wait for the role */
    unsigned int turns;
    uint16_t last; /* thread of the program that sent the last command */
    bool watched;
    uint64_t offers, offer; /* the open offer; 0: none */
    uint32_t asleep;
} roles = {.lock = PTHREAD_MUTEX_INITIALIZER, .threads = 1};

void cb_reader_role_begin(void *(*serve)(void *))
{
    roles.serve = serve;
    sem_init(&roles.role, 0, 0);
}

bool cb_reader_role_take(bool stay)
{
    pthread_mutex_lock(&roles.lock);
    bool wanted = stay || roles.idle < IDLE_MAX;
    if (wanted)
        roles.idle++;
    else
        roles.threads--;
    pthread_mutex_unlock(&roles.lock);
    if (!wanted) return false;
    while (sem_wait(&roles.role)) {
    }
    return true;
}

static bool thread_start(void *(*run)(void *))
{
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    bool started = pthread_create(&thread, &detached, run, NULL) == 0;
    pthread_attr_destroy(&detached);
    return started;
}

/* Give the role to another thread; return false if there can be none, or the offer is no longer open. */
static bool offer_give(uint64_t offer)
{
    bool passed = false;
    pthread_mutex_lock(&roles.lock);
    bool fresh = !roles.idle && roles.threads < THREADS_MAX;
    if (roles.idle || fresh)
        passed = __atomic_compare_exchange_n(&roles.offer, &offer, OFFER_GIVEN, false, __ATOMIC_SEQ_CST,
                                             __ATOMIC_SEQ_CST);
    if (passed && fresh) {
        roles.threads++;
        if (!thread_start(roles.serve)) _exit(1);
    } else if (passed) {
        roles.idle--;
        sem_post(&roles.role);
    }
    pthread_mutex_unlock(&roles.lock);
    return passed;
}

static void watcher_sleep(void)
{
    __atomic_store_n(&roles.asleep, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&roles.offer, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &roles.asleep, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    __atomic_store_n(&roles.asleep, 0, __ATOMIC_SEQ_CST);
}

static void *watcher_run(void *nothing)
{
    uint64_t seen = 0;
    for (unsigned int idle = 0;; idle++) {
        struct timespec pause = {0, PAUSE_NS};
        nanosleep(&pause, NULL);
        uint64_t offer = __atomic_load_n(&roles.offer, __ATOMIC_SEQ_CST);
        if (offer > OFFER_GIVEN && offer == seen)
            offer_give(offer);
        else if (offer > OFFER_GIVEN)
            idle = 0;
        seen = offer;
        if (idle > PAUSES_MAX) {
            watcher_sleep();
            idle = 0;
        }
    }
    return nothing;
}

void cb_reader_role_command(uint16_t thread)
{
    if (thread != roles.last)
        roles.turns = TURNS_LAST;
    else if (roles.turns)
        roles.turns--;
    roles.last = thread;
}

uint64_t cb_reader_role_offer(void)
{
    uint64_t offer = ++roles.offers + OFFER_GIVEN;
    bool turns = roles.turns != 0;
    if (!turns && !roles.watched) roles.watched = thread_start(watcher_run);
    turns = turns || !roles.watched;
    __atomic_store_n(&roles.offer, offer,
                     __ATOMIC_SEQ_CST); /* from here on another thread may take the role */
    if (turns)
        offer_give(offer);
    else if (__atomic_load_n(&roles.asleep, __ATOMIC_SEQ_CST) &&
             __atomic_exchange_n(&roles.asleep, 0, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &roles.asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return offer;
}

bool cb_reader_role_returned(uint64_t offer)
{
    return __atomic_compare_exchange_n(&roles.offer, &offer, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

bool cb_reader_role_others_wait(void)
{
    pthread_mutex_lock(&roles.lock);
    bool some = roles.threads - roles.idle > 1;
    pthread_mutex_unlock(&roles.lock);
    return some;
}
