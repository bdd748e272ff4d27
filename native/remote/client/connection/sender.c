/*
 * Sending of commands that no thread waits for. While commands come the thread polls every few microseconds, so
 * that many travel together and the caller makes no system call; if none came for a while it sleeps until it is
 * woken.
 */
#include "remote/client/connection/sender.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS     20000
#define PAUSE_MAX_NS 500000 /* while another thread is sending much */
#define IDLE_MAX     50     /* pauses without a command, before it sleeps */

static uint32_t sender_asleep; /* 1: waits to be woken */
static bool sender_started;

static void sender_sleep(void)
{
    __atomic_store_n(&sender_asleep, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&cb_command_buffer.lock); /* commands that came before `asleep` was visible */
    bool something = cb_command_buffer.filled != 0;
    pthread_mutex_unlock(&cb_command_buffer.lock);
    while (!something && __atomic_load_n(&sender_asleep, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &sender_asleep, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    __atomic_store_n(&sender_asleep, 0, __ATOMIC_SEQ_CST);
}

static void *sender_run(void *nothing)
{
    (void)nothing;
    prctl(PR_SET_NAME, "calabash-send");
    long pause_ns = PAUSE_NS;
    for (unsigned idle = 0;;) {
        struct timespec pause = {0, pause_ns};
        nanosleep(&pause, NULL);
        if (pthread_mutex_trylock(&cb_command_buffer.lock)) { /* another thread is sending */
            pause_ns = pause_ns < PAUSE_MAX_NS / 2 ? 2 * pause_ns : PAUSE_MAX_NS;
            continue;
        }
        pause_ns = PAUSE_NS;
        idle = cb_command_buffer.filled ? 0 : idle + 1;
        bool alive = cb_command_buffer_flush();
        pthread_mutex_unlock(&cb_command_buffer.lock);
        if (!alive) return NULL;
        if (idle > IDLE_MAX) {
            sender_sleep();
            idle = 0;
        }
    }
}

bool cb_sender_start(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are not delivered to it */
    sender_started = sender_started || pthread_create(&thread, NULL, sender_run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return sender_started;
}

void cb_sender_wake(void)
{
    if (__atomic_load_n(&sender_asleep, __ATOMIC_SEQ_CST) &&
        __atomic_exchange_n(&sender_asleep, 0, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &sender_asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void cb_sender_after_fork(void)
{
    sender_started = false;
    sender_asleep = 0;
}
