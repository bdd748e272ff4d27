/*
 * Checks of calls that wait for each other: threads, polling, host functions, copies that arrive while no
 * thread waits.
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

/* A waiting thread does not block the thread that it waits for. */
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int seen = -1, copied;

static void CUDA_CB look(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    seen = copied;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

/* The program waits for its function with a lock of its own, and the function sees what was copied before it. */
static void function_without_a_call(void)
{
    prepare();
    for (int round = 1; round <= 5; round++) {
        OK(cuMemsetD32Async(flag, (unsigned)round, 1, a));
        OK(cuMemcpyDtoHAsync_v2(&copied, flag, 4, a));
        OK(cuLaunchHostFunc(a, look, NULL));
        pthread_mutex_lock(&lock);
        while (seen != round)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
    }
    OK(cuMemFree_v2(flag));
}

/* Data that a stream has copied is there when another stream that waited for it is queried, by any call. */
static void copies_before_the_answer(void)
{
    enum { N = 1 << 18 };
    static int out[N];
    CUdeviceptr p;
    CUevent copied_all, behind;
    prepare();
    OK(cuMemAlloc_v2(&p, 4 * N));
    OK(cuEventCreate(&copied_all, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING));
    for (int round = 1; round <= 20; round++) {
        OK(cuMemsetD32Async(p, (unsigned)round, N, a));
        OK(cuMemcpyDtoHAsync_v2(out, p, 4 * N, a));
        OK(cuEventRecord(copied_all, a));
        OK(cuStreamWaitEvent(b, copied_all, 0));
        OK(cuEventRecord(behind, b));
        switch (round % 4) {
        case 0:
            OK(cuStreamSynchronize(b));
            break;
        case 1:
            while (cuEventQuery(behind) == CUDA_ERROR_NOT_READY)
                ;
            break;
        case 2:
            OK(cuEventSynchronize(behind));
            break;
        default:
            while (cuStreamQuery(b) == CUDA_ERROR_NOT_READY)
                ;
        }
        TRUE(out[0] == round && out[N - 1] == round);
    }
    OK(cuMemFree_v2(p));
    OK(cuMemFree_v2(flag));
}

static void *synchronize(void *result)
{
    OK(cuCtxSetCurrent(context));
    *(CUresult *)result = cuStreamSynchronize(b);
    return NULL;
}

static void *end_capture(void *result)
{
    CUgraph none;
    OK(cuCtxSetCurrent(context));
    *(CUresult *)result = cuStreamEndCapture(a, &none);
    return NULL;
}

static CUresult in_a_thread(void *(*run)(void *))
{
    CUresult result = CUDA_SUCCESS;
    pthread_t thread;
    TRUE(pthread_create(&thread, NULL, run, &result) == 0);
    pthread_join(thread, NULL);
    return result;
}

/* A capture restricts the thread that began it, and others only in global mode. */
static void captures_by_thread(void)
{
    CUgraph g;
    CUstreamCaptureStatus status;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    prepare();
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    EQUAL(in_a_thread(synchronize), CUDA_SUCCESS);
    EQUAL(in_a_thread(end_capture), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamSynchronize(b));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    spin(a, 1000);
    OK(cuStreamEndCapture(a, &g));
    OK(cuGraphDestroy(g));
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EQUAL(in_a_thread(synchronize), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamIsCapturing(a, &status));
    EQUAL(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT(cuStreamEndCapture(a, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamSynchronize(b));
    OK(cuMemFree_v2(flag));
}

static void CUDA_CB count(void *unused)
{
    (void)unused;
    copied++;
}

/* A wait is for the record that existed when it was called: the event may be recorded again behind it. */
static void waits_take_the_record_of_their_call(void)
{
    CUevent turn;
    prepare();
    copied = 0;
    OK(cuEventCreate(&turn, CU_EVENT_DISABLE_TIMING));
    for (unsigned round = 1; round <= 20; round++) {
        OK(cuStreamWaitValue32_v2(b, flag, round, CU_STREAM_WAIT_VALUE_GEQ));
        OK(cuLaunchHostFunc(b, count, NULL));
        OK(cuEventRecord(turn, b));
        OK(cuStreamWaitEvent(a, turn, 0));
        OK(cuLaunchHostFunc(a, look, NULL));
        OK(cuEventRecord(turn, a));
        if (round % 2) OK(cuStreamWaitEvent(b, turn, 0));
        EXPECT(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
        OK(cuMemsetD32_v2(flag, round, 1));
        OK(cuStreamSynchronize(a));
        OK(cuStreamSynchronize(b));
        OK(cuEventSynchronize(turn));
        EQUAL(seen, round);
    }
    OK(cuEventDestroy_v2(turn));
    OK(cuMemFree_v2(flag));
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"threads_wait", threads_wait},
        {"function_without_a_call", function_without_a_call},
        {"copies_before_the_answer", copies_before_the_answer},
        {"captures_by_thread", captures_by_thread},
        {"waits_take_the_record_of_their_call", waits_take_the_record_of_their_call},
    };
    start();
    return run_check(checks, sizeof checks / sizeof checks[0], argc, argv);
}
