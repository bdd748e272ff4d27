/*
 * A program with two devices: its lines must be the same when both are local and when each belongs to another
 * server. Further checks concern what is different between servers.
 */
#include "sim_cuda_check.h"

#include <sys/wait.h>

#define COUNT  100000u
#define ROUNDS 20

static const char text[] =
    ".version 8.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry scale(.param .u64 p0, .param .u32 n, .param .u32 factor)\n"
    "{ .reg .b32 %r<6>; .reg .b64 %d<3>; .reg .pred %p<2>; ld.param.u64 %d0, [p0]; ld.param.u32 %r0, [n];\n"
    "ld.param.u32 %r5, [factor]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
    "mad.lo.u32 %r1, %r1, %r2, %r3; setp.ge.u32 %p0, %r1, %r0; @%p0 ret; mul.wide.u32 %d1, %r1, 4;\n"
    "add.u64 %d0, %d0, %d1; ld.global.u32 %r4, [%d0]; mul.lo.u32 %r4, %r4, %r5; add.u32 %r4, %r4, %r1;\n"
    "st.global.u32 [%d0], %r4; ret; }\n";

static struct side {
    CUcontext context;
    CUmodule module;
    CUfunction scale;
    CUdeviceptr at;
    CUstream stream;
} side[2];

static void current(int i)
{
    OK(cuCtxSetCurrent(side[i].context));
}

static void begin_both(void)
{
    int count;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    EQUAL(count, 2);
    for (int i = 0; i < 2; i++) {
        CUdevice device, now;
        OK(cuDeviceGet(&device, i));
        EQUAL(device, i);
        OK(cuDevicePrimaryCtxRetain(&side[i].context, device));
        OK(cuCtxSetCurrent(side[i].context));
        OK(cuCtxGetDevice(&now));
        EQUAL(now, i);
        OK(cuModuleLoadData(&side[i].module, text));
        OK(cuModuleGetFunction(&side[i].scale, side[i].module, "scale"));
        OK(cuMemAlloc_v2(&side[i].at, COUNT * 4));
        OK(cuStreamCreate(&side[i].stream, CU_STREAM_NON_BLOCKING));
        int can;
        OK(cuDeviceCanAccessPeer(&can, i, !i));
        if (i && can) { /* two local ones */
            OK(cuCtxEnablePeerAccess(side[0].context, 0));
            current(0);
            OK(cuCtxEnablePeerAccess(side[1].context, 0));
        }
    }
}

static void scale_with(int i, CUfunction f, CUstream stream, unsigned int factor)
{
    unsigned int n = COUNT;
    void *p[] = {&side[i].at, &n, &factor};
    OK(cuLaunchKernel(f, (n + 127) / 128, 1, 1, 128, 1, 1, 0, stream, p, NULL));
}

static unsigned int data[COUNT];

static void show(const char *what, CUdeviceptr from)
{
    CUcontext before;
    OK(cuCtxGetCurrent(&before));
    current(from - side[1].at < COUNT * 4);
    unsigned long long s = 14695981039346656037ull;
    memset(data, 0, sizeof data);
    OK(cuMemcpyDtoH_v2(data, from, sizeof data));
    for (size_t i = 0; i < COUNT; i++)
        s = (s ^ data[i]) * 1099511628211ull;
    OK(cuCtxSetCurrent(before));
    printf("%s %llu\n", what, s);
}

/* ---- the same with two local devices ---- */

static void fill(int i, unsigned int seed)
{
    for (unsigned int k = 0; k < COUNT; k++)
        data[k] = k * seed;
    current(i);
    OK(cuMemcpyHtoD_v2(side[i].at, data, sizeof data));
    OK(cuStreamSynchronize(NULL)); /* work of other streams comes after it */
}

static void check_copies(void)
{
    begin_both();
    fill(0, 3);
    fill(1, 5);
    current(0);
    scale_with(0, side[0].scale, NULL, 7);
    OK(cuMemcpyPeer(side[1].at, side[1].context, side[0].at, side[0].context, sizeof data));
    show("peer", side[1].at);
    current(1);
    scale_with(1, side[1].scale, NULL, 11);
    OK(cuMemcpyDtoD_v2(side[0].at, side[1].at, sizeof data));
    show("dtod", side[0].at);
    current(0);
    scale_with(0, side[0].scale, side[0].stream, 13);
    OK(cuMemcpyPeerAsync(side[1].at, side[1].context, side[0].at, side[0].context, sizeof data, side[0].stream));
    OK(cuStreamSynchronize(side[0].stream));
    show("peer in a stream", side[1].at);
    scale_with(0, side[0].scale, side[0].stream, 17);
    OK(cuMemcpyDtoDAsync_v2(side[1].at + 4000, side[0].at, 4000, side[0].stream));
    OK(cuMemcpyAsync(side[1].at + 8000, side[0].at + 8000, 4000, side[0].stream));
    OK(cuStreamSynchronize(side[0].stream));
    show("parts in a stream", side[1].at);
    OK(cuMemcpy(side[0].at, side[1].at + 4, 4000));
    show("unified", side[0].at);
    CUDA_MEMCPY2D rows = {.srcXInBytes = 8,
                          .srcY = 1,
                          .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = side[0].at,
                          .srcPitch = 512,
                          .dstXInBytes = 4,
                          .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .dstDevice = side[1].at,
                          .dstPitch = 1024,
                          .WidthInBytes = 400,
                          .Height = 300};
    OK(cuMemcpy2D_v2(&rows));
    show("rows", side[1].at);
    CUDA_MEMCPY3D_PEER box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                              .srcDevice = side[1].at,
                              .srcContext = side[1].context,
                              .srcPitch = 256,
                              .srcHeight = 16,
                              .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                              .dstDevice = side[0].at,
                              .dstContext = side[0].context,
                              .dstPitch = 512,
                              .dstHeight = 8,
                              .WidthInBytes = 200,
                              .Height = 6,
                              .Depth = 20};
    OK(cuMemcpy3DPeer(&box));
    show("boxes", side[0].at);
}

/* A pipeline: each device works on the other's results, ordered by events alone. */
static void check_order(void)
{
    CUevent done[ROUNDS];
    begin_both();
    for (int i = 0; i < 2; i++) {
        current(i);
        fill(i, 2);
        for (unsigned int round = (unsigned)i; round < ROUNDS; round += 2)
            OK(cuEventCreate(&done[round], CU_EVENT_DISABLE_TIMING));
    }
    for (unsigned int round = 0; round < ROUNDS; round++) {
        int i = round % 2, other = !i;
        current(i);
        if (round) OK(cuStreamWaitEvent(side[i].stream, done[round - 1], 0));
        if (round)
            OK(cuMemcpyPeerAsync(side[i].at, side[i].context, side[other].at, side[other].context, sizeof data,
                                    side[i].stream));
        scale_with(i, side[i].scale, side[i].stream, round + 2);
        OK(cuEventRecord(done[round], side[i].stream));
    }
    OK(cuEventSynchronize(done[ROUNDS - 1]));
    show("rounds", side[1].at);
    for (unsigned int k = 0; k < COUNT; k++) {
        unsigned int wanted = k * 2;
        for (unsigned int round = 0; round < ROUNDS; round++)
            wanted = wanted * (round + 2) + k;
        EQUAL(data[k], wanted);
    }
    current(1);
    EXPECT(cuEventRecord(done[0], side[1].stream), CUDA_ERROR_INVALID_HANDLE);
}

/* A library is loaded once, and its kernel launched on either device. */
static void check_library(void)
{
    CUlibrary library, of;
    CUkernel kernel, same;
    CUmodule of_context[2];
    unsigned int count;
    begin_both();
    OK(cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "scale"));
    OK(cuLibraryGetKernelCount(&count, library));
    EQUAL(count, 1);
    OK(cuLibraryEnumerateKernels(&same, 1, library));
    TRUE(same == kernel);
    OK(cuKernelGetLibrary(&of, kernel));
    TRUE(of == library);
    for (int i = 0; i < 2; i++) {
        CUfunction f;
        int threads;
        current(i);
        fill(i, 9);
        scale_with(i, (CUfunction)kernel, NULL, 3);
        OK(cuStreamSynchronize(NULL));
        scale_with(i, (CUfunction)kernel, side[i].stream, 1);
        OK(cuCtxSynchronize());
        OK(cuKernelGetFunction(&f, kernel));
        OK(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, i));
        TRUE(threads > 0);
        CUlaunchConfig config = {
            .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
        unsigned int n = 32, factor = 5;
        void *p[] = {&side[i].at, &n, &factor};
        config.hStream = side[i].stream;
        OK(cuLaunchKernelEx(&config, (CUfunction)kernel, p, NULL));
        OK(cuCtxSynchronize());
        OK(cuLibraryGetModule(&of_context[i], library));
        show("library", side[i].at);
    }
    OK(cuLibraryUnload(library));
    EXPECT(cuLibraryGetKernel(&kernel, library, "scale"), CUDA_ERROR_INVALID_HANDLE);
}

/* The current contexts form one stack. */
static void check_stack(void)
{
    CUcontext now, made;
    CUdevice device;
    begin_both();
    current(0);
    OK(cuCtxPushCurrent_v2(side[1].context));
    OK(cuCtxPushCurrent_v2(side[0].context));
    OK(cuCtxPushCurrent_v2(side[1].context));
    OK(cuCtxPopCurrent_v2(&now));
    TRUE(now == side[1].context);
    OK(cuCtxGetCurrent(&now));
    TRUE(now == side[0].context);
    OK(cuCtxSetCurrent(side[1].context));
    OK(cuCtxGetDevice(&device));
    EQUAL(device, 1);
    OK(cuCtxPopCurrent_v2(&now));
    TRUE(now == side[1].context);
    OK(cuCtxPopCurrent_v2(&now));
    TRUE(now == side[1].context);
    OK(cuCtxCreate_v2(&made, 0, 1));
    OK(cuCtxGetDevice(&device));
    EQUAL(device, 1);
    OK(cuCtxDestroy_v2(made));
    OK(cuCtxGetCurrent(&now));
    TRUE(now == side[0].context);
    OK(cuCtxPopCurrent_v2(&now));
    EXPECT(cuCtxPopCurrent_v2(&now), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxSetCurrent(side[1].context));
    OK(cuMemFree_v2(side[0].at)); /* its device follows from its address */
    OK(cuMemFree_v2(side[1].at));
    EXPECT(cuMemFree_v2(side[1].at), CUDA_ERROR_INVALID_VALUE);
}

static void check_pointers(void)
{
    begin_both();
    current(0);
    for (int i = 0; i < 2; i++) {
        int ordinal;
        CUcontext of;
        CUdeviceptr base;
        size_t bytes;
        OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, side[i].at));
        EQUAL(ordinal, i);
        OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, side[i].at));
        TRUE(of == side[i].context);
        OK(cuMemGetAddressRange_v2(&base, &bytes, side[i].at + 100));
        TRUE(base == side[i].at && bytes == COUNT * 4);
        CUmemoryPool pool;
        CUdeviceptr from_pool;
        CUmemLocation place = {CU_MEM_LOCATION_TYPE_DEVICE, i};
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = place};
        OK(cuMemPoolCreate(&pool, &props));
        OK(cuMemAllocFromPoolAsync(&from_pool, 4096, pool, side[i].stream));
        OK(cuMemsetD8Async(from_pool, 1, 4096, side[i].stream));
        OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, from_pool));
        EQUAL(ordinal, i);
        OK(cuMemFreeAsync(from_pool, side[i].stream));
        OK(cuStreamSynchronize(side[i].stream));
        OK(cuMemPoolDestroy(pool));
    }
}

/* Pinned memory of one device is ordinary memory to the other. */
static void check_pinned(void)
{
    unsigned int *pinned;
    begin_both();
    current(0);
    OK(cuMemHostAlloc((void **)&pinned, COUNT * 4, CU_MEMHOSTALLOC_PORTABLE));
    for (unsigned int k = 0; k < COUNT; k++)
        pinned[k] = k;
    for (int i = 1; i >= 0; i--) {
        current(i);
        OK(cuMemcpyHtoDAsync_v2(side[i].at, pinned, COUNT * 4, side[i].stream));
        scale_with(i, side[i].scale, side[i].stream, 3);
        OK(cuMemcpyDtoHAsync_v2(pinned, side[i].at, COUNT * 4, side[i].stream));
        OK(cuStreamSynchronize(side[i].stream));
        EQUAL(pinned[1000], i ? 4000 : 13000);
    }
    OK(cuMemFreeHost(pinned));
}

/* ---- between servers ---- */

static void check_apart(void)
{
    int can = 7, value = 7;
    CUstream captured;
    CUevent event;
    begin_both();
    TRUE(side[0].at >> 41 != side[1].at >> 41);
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    EQUAL(can, 0);
    OK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 1, 0));
    EQUAL(value, 0);
    EXPECT(cuDeviceCanAccessPeer(&can, 0, 2), CUDA_ERROR_INVALID_DEVICE);
    current(0);
    EXPECT(cuCtxEnablePeerAccess(side[1].context, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    EXPECT(cuCtxDisablePeerAccess(side[1].context), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    EXPECT(cuLaunchCooperativeKernelMultiDevice(NULL, 2, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT(cuMemsetD8Async(side[1].at, 1, 16, side[0].stream), CUDA_ERROR_INVALID_VALUE);
    unsigned int n = 1, factor = 1;
    void *p[] = {&side[0].at, &n, &factor};
    EXPECT(cuLaunchKernel(side[0].scale, 1, 1, 1, 1, 1, 1, 0, side[1].stream, p, NULL), CUDA_ERROR_INVALID_HANDLE);
    CUmemAccessDesc other = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1},
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemoryPool pool;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    EXPECT(cuMemPoolSetAccess(pool, &other, 1), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    OK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    current(1);
    OK(cuEventCreate(&event, 0));
    OK(cuEventRecord(event, side[1].stream));
    current(0);
    OK(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(cuStreamWaitEvent(captured, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
}

static void check_child(void)
{
    begin_both();
    int told;
    pid_t child = fork();
    if (child == 0) {
        int count;
        int none = cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && cuCtxSynchronize() != CUDA_SUCCESS;
        _exit(none && cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    TRUE(waitpid(child, &told, 0) == child && told == 0);
    for (int i = 0; i < 2; i++) {
        current(i);
        OK(cuMemsetD8_v2(side[i].at, 1, 16));
        OK(cuCtxSynchronize());
    }
}

/* The second server ends. */
static void check_lost(void)
{
    char line[16];
    begin_both();
    fill(0, 3);
    puts("ready");
    fflush(stdout);
    TRUE(fgets(line, sizeof line, stdin) != NULL);
    current(1);
    while (cuCtxSynchronize() == CUDA_SUCCESS)
        usleep(1000);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT(cuMemcpyPeer(side[0].at, side[0].context, side[1].at, side[1].context, 64),
           CUDA_ERROR_DEVICE_UNAVAILABLE);
    current(0);
    scale_with(0, side[0].scale, NULL, 2);
    OK(cuCtxSynchronize());
    show("left", side[0].at);
    CUdeviceptr more;
    OK(cuMemAlloc_v2(&more, 4096));
    OK(cuMemFree_v2(more));
}

static void check_chosen(void)
{
    int count;
    char name[256];
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++) {
        OK(cuDeviceGetName(name, sizeof name, i));
        puts(name);
    }
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"copies", check_copies},     {"order", check_order}, {"library", check_library}, {"stack", check_stack},
        {"pointers", check_pointers}, {"pinned", check_pinned}, {"apart", check_apart},   {"child", check_child},
        {"lost", check_lost},         {"chosen", check_chosen},
    };
    return run_check(checks, sizeof checks / sizeof checks[0], argc, argv);
}
