/*
 * Green contexts of the simulated driver, on an A100 of 108 multiprocessors: sim_cuda_green CHECK.
 */
#include "sim_cuda_check.h"

#include <math.h>

#define A100_SMS 108u
#define MIB      (1ull << 20)
#define TRIES    4 /* repeated measurements, because a busy machine only makes them longer */

static CUdevResource whole(void)
{
    CUdevResource all;
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    return all;
}

/* A green context with `count` multiprocessors. */
static CUgreenCtx green(unsigned int count)
{
    CUdevResource all = whole(), part;
    CUdevResourceDesc desc;
    CUgreenCtx made;
    unsigned int groups = 1;
    OK(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, count));
    OK(cuDevResourceGenerateDesc(&desc, &part, 1));
    OK(cuGreenCtxCreate(&made, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return made;
}

static CUcontext converted(CUgreenCtx g)
{
    CUcontext c;
    OK(cuCtxFromGreenCtx(&c, g));
    return c;
}

static CUstream stream_of(CUgreenCtx g)
{
    CUstream s;
    OK(cuGreenCtxStreamCreate(&s, g, CU_STREAM_NON_BLOCKING, 0));
    return s;
}

static CUevent event(void)
{
    CUevent e;
    OK(cuEventCreate(&e, CU_EVENT_DEFAULT));
    return e;
}

static float between(CUevent a, CUevent b)
{
    float ms;
    OK(cuEventSynchronize(b));
    OK(cuEventElapsedTime(&ms, a, b));
    return ms;
}

static void split(void)
{
    CUdevResource all = whole(), part[32], rest;
    unsigned int groups = 0;
    EQUAL(all.type, CU_DEV_RESOURCE_TYPE_SM);
    EQUAL(all.sm.smCount, A100_SMS);
    EQUAL(all.sm.minSmPartitionSize, 4);
    EQUAL(all.sm.smCoscheduledAlignment, 2);
    OK(cuDevSmResourceSplitByCount(NULL, &groups, &all, NULL, 0, 0));
    EQUAL(groups, 27);
    OK(cuDevSmResourceSplitByCount(NULL, &groups, &all, NULL, 0, 15)); /* rounded up to 16 */
    EQUAL(groups, 6);
    groups = 3;
    OK(cuDevSmResourceSplitByCount(part, &groups, &all, &rest, 0, 15));
    EQUAL(groups, 3);
    EQUAL(part[2].sm.smCount, 16);
    EQUAL(rest.sm.smCount, A100_SMS - 48);
    groups = 32;
    OK(cuDevSmResourceSplitByCount(part, &groups, &all, &rest, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING,
                                   50));
    EQUAL(groups, 2);
    EQUAL(rest.sm.smCount, 8);
    EXPECT(cuDevSmResourceSplitByCount(part, &groups, &all, NULL, 0, A100_SMS + 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuDevSmResourceSplitByCount(part, &groups, &all, NULL, 8, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuDevSmResourceSplitByCount(part, NULL, &all, NULL, 0, 4), CUDA_ERROR_INVALID_VALUE);
    groups = 2;
    OK(cuDevSmResourceSplitByCount(part, &groups, &all, &rest, 0, 54));
    EQUAL(rest.type, CU_DEV_RESOURCE_TYPE_INVALID);
    EXPECT(cuDevSmResourceSplitByCount(part, &groups, &part[0], NULL, 0, 4),
           CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    EXPECT(cuDevSmResourceSplitByCount(part, &groups, &rest, NULL, 0, 4), CUDA_ERROR_INVALID_RESOURCE_TYPE);
    EXPECT(cuDeviceGetDevResource(0, &all, 7), CUDA_ERROR_INVALID_RESOURCE_TYPE);
    EXPECT(cuDeviceGetDevResource(9, &all, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_DEVICE);
}

static void forged(void)
{
    CUdevResource all = whole(), one[2], other[2], both[2];
    CUdevResourceDesc desc;
    CUgreenCtx g;
    unsigned int groups = 2;
    OK(cuDevSmResourceSplitByCount(one, &groups, &all, NULL, 0, 32));
    OK(cuDevSmResourceSplitByCount(other, &groups, &all, NULL, 0, 32));
    both[0] = one[0];
    both[1] = other[1];
    EXPECT(cuDevResourceGenerateDesc(&desc, both, 2), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    both[1] = one[0];
    EXPECT(cuDevResourceGenerateDesc(&desc, both, 2), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    one[0].sm.smCount = A100_SMS;
    EXPECT(cuDevResourceGenerateDesc(&desc, one, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuDevResourceGenerateDesc(&desc, one, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuDevResourceGenerateDesc(&desc, other, 2));
    EXPECT(cuGreenCtxCreate(&g, desc, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuGreenCtxCreate(&g, desc, 1, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_ERROR_INVALID_DEVICE);
    EXPECT(cuGreenCtxCreate(&g, (CUdevResourceDesc)&all, 0, CU_GREEN_CTX_DEFAULT_STREAM),
           CUDA_ERROR_INVALID_VALUE);
    OK(cuGreenCtxCreate(&g, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuGreenCtxGetDevResource(g, &all, CU_DEV_RESOURCE_TYPE_SM));
    EQUAL(all.sm.smCount, 64);
    EXPECT(cuDeviceGetAttribute((int *)&groups, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0), CUDA_SUCCESS);
    EQUAL(groups, A100_SMS);
    OK(cuGreenCtxDestroy(g));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void made(void)
{
    CUgreenCtx g = green(32), found;
    CUcontext c = converted(g), primary;
    CUdevResource resource;
    CUstream s = stream_of(g);
    unsigned long long id, own;
    TRUE((void *)g != (void *)c && c != context);
    EXPECT(cuCtxSetCurrent((CUcontext)g), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuCtxDestroy_v2(c), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuGreenCtxStreamCreate(&s, g, 0, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuGreenCtxGetId(g, &id));
    EXPECT(cuGreenCtxGetId(NULL, &own), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuStreamGetGreenCtx(s, &found));
    TRUE(found == g);
    OK(cuStreamGetCtx_v2(s, &primary, &found));
    TRUE(primary == context && found == g);
    OK(cuStreamGetCtx_v2(NULL, &primary, &found));
    TRUE(primary == context && found == NULL);
    OK(cuCtxGetDevResource(context, &resource, CU_DEV_RESOURCE_TYPE_SM));
    EQUAL(resource.sm.smCount, A100_SMS);
    OK(cuCtxSetCurrent(c));
    OK(cuGreenCtxGetId(NULL, &own));
    EQUAL(own, id);
    OK(cuCtxGetDevResource(NULL, &resource, CU_DEV_RESOURCE_TYPE_SM));
    EQUAL(resource.sm.smCount, 32);
    EXPECT(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_HANDLE);
    OK(cuStreamQuery(NULL));
    OK(cuDevicePrimaryCtxRelease_v2(0)); /* the green context keeps it */
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
    OK(cuGreenCtxDestroy(g));
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    int active;
    unsigned int flags;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    TRUE(!active);
}

static void memory_stays(void)
{
    CUgreenCtx g = green(32);
    CUdeviceptr p;
    CUmodule loaded;
    CUfunction f;
    int host[4];
    OK(cuCtxPushCurrent_v2(converted(g)));
    size_t before = used_bytes();
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuModuleLoadData(&loaded, image));
    OK(cuModuleGetFunction(&f, loaded, "iota"));
    count_up(NULL, p, 4);
    OK(cuCtxSynchronize());
    OK(cuCtxPopCurrent_v2(NULL));
    OK(cuGreenCtxDestroy(g));
    TRUE(used_bytes() > before - 16 * MIB); /* the green context's own cost is gone, the memory is not */
    OK(cuMemcpyDtoH_v2(host, p, sizeof host));
    EQUAL(host[3], 3);
    int n = 4;
    void *args[] = {&p, &n};
    OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, args, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemFree_v2(p));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void side_by_side(void)
{
    CUgreenCtx half = green(54), quarter = green(27); /* 28, by the granularity */
    CUstream a = stream_of(half), b = stream_of(quarter);
    CUevent begin[2] = {event(), event()}, end[2] = {event(), event()};
    float slow = 1e9f, slower = 1e9f;
    for (int i = 0; i < TRIES; i++) {
        OK(cuEventRecord(begin[0], a));
        OK(cuEventRecord(begin[1], b));
        spin(a, 20000000);
        spin(b, 20000000);
        OK(cuEventRecord(end[0], a));
        OK(cuEventRecord(end[1], b));
        slow = fminf(slow, between(begin[0], end[0]));
        slower = fminf(slower, between(begin[1], end[1]));
    }
    TRUE(slow > 39.0f && slow < 43.0f);
    TRUE(slower > 76.0f && slower < 82.0f);
    OK(cuGreenCtxDestroy(half));
    OK(cuGreenCtxDestroy(quarter));
    double alone = 1e9;
    for (int i = 0; i < TRIES; i++) {
        spin(NULL, 20000000);
        double began = now_s();
        OK(cuCtxSynchronize());
        alone = fmin(alone, now_s() - began);
    }
    TRUE(alone < 0.1); /* alone again, with all of the card */
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void events(void)
{
    CUgreenCtx g = green(54), other = green(54);
    CUstream a = stream_of(g), b = stream_of(g), c = stream_of(other);
    CUevent all = event(), late = event();
    OK(cuEventRecord(late, c)); /* in one green context after another: they have the same home */
    OK(cuEventRecord(late, a));
    spin(a, 20000000);
    spin(b, 20000000);
    OK(cuGreenCtxRecordEvent(g, all));
    OK(cuGreenCtxWaitEvent(other, all));
    spin(c, 1000000);
    OK(cuEventRecord(late, c));
    EXPECT(cuEventQuery(all), CUDA_ERROR_NOT_READY);
    TRUE(between(all, late) > 0.5f);
    spin(a, 30000000);
    OK(cuCtxSynchronize()); /* the primary one is current: its green ones are waited for */
    OK(cuStreamQuery(a));
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(cuGreenCtxRecordEvent(g, all), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUgraph graph;
    EXPECT(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CUcontext plain;
    OK(cuCtxCreate_v4(&plain, NULL, 0, 0));
    CUevent foreign = event();
    EXPECT(cuGreenCtxRecordEvent(g, foreign), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxDestroy_v2(plain));
    OK(cuGreenCtxDestroy(g));
    OK(cuEventSynchronize(late));
    OK(cuEventSynchronize(all)); /* it was recorded in a destroyed context, and is done */
    OK(cuGreenCtxDestroy(other));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void destroyed(void)
{
    CUgreenCtx g = green(32);
    CUcontext c = converted(g);
    CUstream s = stream_of(g), t = stream_of(g);
    spin(s, 1000000);
    OK(cuStreamDestroy_v2(t));
    OK(cuCtxPushCurrent_v2(c));
    OK(cuCtxPushCurrent_v2(context));
    OK(cuGreenCtxDestroy(g));
    EXPECT(cuStreamSynchronize(s), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT(cuStreamDestroy_v2(s), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT(cuStreamSynchronize(t), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxPopCurrent_v2(NULL));
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuCtxPopCurrent_v2(NULL));
    EXPECT(cuGreenCtxDestroy(g), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuCtxFromGreenCtx(&c, g), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuGreenCtxDestroy(NULL), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void sticky_green(void)
{
    CUgreenCtx g = green(32);
    CUstream s = stream_of(g);
    CUdeviceptr nowhere = 4096;
    int n = 4;
    void *args[] = {&nowhere, &n};
    OK(cuLaunchKernel(iota, 1, 1, 1, 32, 1, 1, 0, s, args, NULL));
    EXPECT(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* The resource that can be split is what the device shows, also for a client of the multi-process service. */
static void shown(void)
{
    CUdevResource all = whole();
    int attribute;
    unsigned int groups = 0;
    OK(cuDeviceGetAttribute(&attribute, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    EQUAL(all.sm.smCount, attribute);
    EXPECT(cuDevSmResourceSplitByCount(NULL, &groups, &all, NULL, 0, (unsigned int)attribute + 1),
           CUDA_ERROR_INVALID_VALUE);
    printf("%u\n", all.sm.smCount);
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"split", split},     {"forged", forged},
        {"made", made},       {"memory_stays", memory_stays},
        {"events", events},   {"side_by_side", side_by_side},
        {"destroyed", destroyed}, {"sticky_green", sticky_green}, {"shown", shown},
    };
    start();
    return run_check(checks, sizeof checks / sizeof checks[0], argc, argv);
}
