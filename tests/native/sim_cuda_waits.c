/*
 * Checks of calls that wait for each other: threads, polling, host functions, copies that arrive while nobody waits.
 */
#include "sim_cuda_check.h"

#include <pthread.h>

static CUstream a, b;
static CUdeviceptr flag;

static void prepare(void)
{
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&flag, 8));
    OK(cuMemsetD32_v2(flag, 0, 2));
    OK(cuCtxSynchronize());
}

static void *write_later(void *value)
{
    OK(cuCtxSetCurrent(context));
    usleep(20000);
    OK(cuStreamWriteValue32_v2(b, flag, (cuuint32_t)(uintptr_t)value, 0));
    OK(cuStreamSynchronize(b));
    return NULL;
}

static void *wait_for_it(void *unused)
{
    OK(cuCtxSetCurrent(context));
    OK(cuStreamSynchronize(a));
    return unused;
}

/* A thread that waits does not hold back the one that it waits for. */
static void threads_wait(void)
{
    enum { WAITERS = 20 };
    pthread_t waiter[WAITERS], writer;
    prepare();
    for (uintptr_t round = 1; round <= 3; round++) {
        OK(cuStreamWaitValue32_v2(a, flag, (cuuint32_t)round, CU_STREAM_WAIT_VALUE_GEQ));
        for (int i = 0; i < WAITERS; i++)
            TRUE(pthread_create(&waiter[i], NULL, wait_for_it, NULL) == 0);
        TRUE(pthread_create(&writer, NULL, write_later, (void *)round) == 0);
        OK(cuStreamSynchronize(a));
        pthread_join(writer, NULL);
        for (int i = 0; i < WAITERS; i++)
            pthread_join(waiter[i], NULL);
    }
    OK(cuMemFree_v2(flag));
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"threads_wait", threads_wait},
    };
    start();
    return run_check(checks, sizeof checks / sizeof checks[0], argc, argv);
}
