/*
 * The thread that sends commands which nobody waits for. While commands come it looks every few microseconds, so that they
 * travel many at a time and the caller makes no system call; when none came for a while it sleeps until it is woken.
 */
#include "remote/client/connection/sender.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS     20000
#define PAUSE_MAX_NS 500000 /* while somebody else is sending much */
#define IDLE_MAX     50     /* pauses without a command */

static uint32_t asleep; /* 1: waits to be woken */
static bool started;

static void wait_for_work(void)
{
    __atomic_store_n(&asleep, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&cb_line.lock); /* what came before `asleep` was seen */
    bool something = cb_line.filled != 0;
    pthread_mutex_unlock(&cb_line.lock);
    while (!something && __atomic_load_n(&asleep, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &asleep, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    __atomic_store_n(&asleep, 0, __ATOMIC_SEQ_CST);
}

static void *run(void *nothing)
{
    (void)nothing;
    prctl(PR_SET_NAME, "calabash-send");
    long pause_ns = PAUSE_NS;
    for (unsigned idle = 0;;) {
        struct timespec pause = {0, pause_ns};
        nanosleep(&pause, NULL);
        if (pthread_mutex_trylock(&cb_line.lock)) { /* somebody is sending */
            pause_ns = pause_ns < PAUSE_MAX_NS / 2 ? 2 * pause_ns : PAUSE_MAX_NS;
            continue;
        }
        pause_ns = PAUSE_NS;
        idle = cb_line.filled ? 0 : idle + 1;
        bool alive = cb_line_flush();
        pthread_mutex_unlock(&cb_line.lock);
        if (!alive) return NULL;
        if (idle > IDLE_MAX) {
            wait_for_work();
            idle = 0;
        }
    }
}

bool cb_sender_start(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are not for it */
    started = started || pthread_create(&thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

void cb_sender_wake(void)
{
    if (__atomic_load_n(&asleep, __ATOMIC_SEQ_CST) && __atomic_exchange_n(&asleep, 0, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void cb_sender_forget(void)
{
    started = false;
    asleep = 0;
}
