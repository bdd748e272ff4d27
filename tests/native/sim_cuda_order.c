/*
 * Checks of order and time: streams, events, host functions, the default streams, threads, fork, graphs,
 * look-up of functions and invalid arguments.
 */
#include "sim_cuda_check.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sys/wait.h>

static float between(CUevent a, CUevent b)
{
    float ms;
    OK(cuEventElapsedTime(&ms, a, b));
    return ms;
}

static CUevent event(void)
{
    CUevent e;
    OK(cuEventCreate(&e, CU_EVENT_DEFAULT));
    return e;
}

static CUstream stream(unsigned int flags)
{
    CUstream s;
    OK(cuStreamCreate(&s, flags));
    return s;
}

/* Ten kernels of 5 ms take 50 ms of the card, however late this process wakes. */
static void exact_time(void)
{
    CUevent begin = event(), middle = event(), end = event();
    spin(NULL, 1000000); /* the card is busy when the clock starts, so that the start is the end of this */
    OK(cuEventRecord(begin, NULL));
    for (int i = 0; i < 10; i++) {
        spin(NULL, 5000000);
        if (i == 4) OK(cuEventRecord(middle, NULL));
    }
    OK(cuEventRecord(end, NULL));
    EXPECT(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    float ms;
    EXPECT(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_NOT_READY);
    OK(cuEventSynchronize(end));
    TRUE(fabsf(between(begin, end) - 50.0f) < 0.0005f);
    TRUE(fabsf(between(begin, middle) - 25.0f) < 0.0005f);
}

/* Times stay exact when many more entries follow than the queue holds. */
static void exact_time_of_long_ago(void)
{
    CUevent begin = event(), end = event();
    spin(NULL, 100000000); /* later work is posted before this ends, however busy the machine is */
    OK(cuEventRecord(begin, NULL));
    spin(NULL, 3000000);
    OK(cuEventRecord(end, NULL));
    for (int i = 0; i < 5000; i++)
        spin(NULL, 1000);
    OK(cuCtxSynchronize());
    TRUE(fabsf(between(begin, end) - 3.0f) < 0.0005f);
}

/* Destination to which a copy may come later: a copy to pageable memory is waited for by its call. */
static int *landing(void)
{
    void *p;
    OK(cuMemAllocHost_v2(&p, sizeof(int)));
    *(int *)p = -1;
    return p;
}

static volatile int told;

static void CUDA_CB tell(void *value)
{
    usleep(20000);
    told = (int)(long)value;
}

/* Work behind a slow host function, and work of another stream that waits for it, comes after it. */
static void host_function_holds_back(void)
{
    CUstream s = stream(CU_STREAM_NON_BLOCKING), t = stream(CU_STREAM_NON_BLOCKING),
             other = stream(CU_STREAM_NON_BLOCKING);
    CUevent e = event();
    CUdeviceptr p;
    int *value = landing();
    OK(cuMemAlloc_v2(&p, 4000));
    OK(cuMemsetD32_v2(p, 0, 1000));
    OK(cuLaunchHostFunc(s, tell, (void *)42));
    count_up(s, p, 1000);
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(t, e, 0));
    OK(cuMemcpyDtoHAsync_v2(value, p + 999 * 4, 4, t));
    spin(other, 1000);
    OK(cuStreamSynchronize(other)); /* not delayed by it */
    EQUAL(told, 0);
    EXPECT(cuEventQuery(e), CUDA_ERROR_NOT_READY);
    EXPECT(cuStreamQuery(t), CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize(t));
    EQUAL(told, 42);
    EQUAL(*value, 999);
}

/* The legacy stream waits for blocking streams and they for it; a non-blocking stream does neither. */
static void default_streams(void)
{
    CUstream s = stream(CU_STREAM_DEFAULT), free_stream = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr p;
    int *value = landing();
    OK(cuMemAlloc_v2(&p, 4000));
    OK(cuMemsetD32_v2(p, 0, 1000));
    OK(cuLaunchHostFunc(s, tell, (void *)1));
    count_up(s, p, 1000);
    OK(cuMemcpyDtoHAsync_v2(value, p + 8, 4, free_stream));
    OK(cuStreamSynchronize(free_stream));
    EQUAL(*value, 0);
    OK(cuMemcpyDtoHAsync_v2(value, p + 8, 4, CU_STREAM_LEGACY));
    EXPECT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize(NULL));
    EQUAL(*value, 2);
    OK(cuLaunchHostFunc(CU_STREAM_PER_THREAD, tell, (void *)2));
    unsigned long long mine, legacy;
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
    OK(cuStreamGetId(NULL, &legacy));
    TRUE(mine != legacy);
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EQUAL(told, 2);
}

/*
 * Objects of a deferred wait may be destroyed before the wait is over; the end of a context leaves events that
 * are errors.
 */
static void destroyed_early(void)
{
    CUstream s = stream(CU_STREAM_NON_BLOCKING), t = stream(CU_STREAM_NON_BLOCKING);
    CUevent e = event(), later = event();
    CUdeviceptr p;
    int *value = landing();
    OK(cuMemAlloc_v2(&p, 400));
    OK(cuMemsetD32_v2(p, 0, 100));
    OK(cuLaunchHostFunc(s, tell, (void *)3));
    count_up(s, p, 100);
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(t, e, 0));
    OK(cuEventDestroy_v2(e));
    OK(cuStreamDestroy_v2(s));
    for (int i = 0; i < 600; i++) /* cells are reused */
        OK(cuEventDestroy_v2(event()));
    EXPECT(cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
    OK(cuMemcpyDtoHAsync_v2(value, p + 396, 4, t));
    OK(cuStreamSynchronize(t));
    EQUAL(*value, 99);
    spin(t, 60000000);
    OK(cuEventRecord(later, t));
    count_up(t, 4096, 1);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuDevicePrimaryCtxReset_v2(0));
    EXPECT(cuEventQuery(later), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuEventDestroy_v2(later));
    EXPECT(cuStreamSynchronize(t), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static void values(void)
{
    CUstream s = stream(CU_STREAM_NON_BLOCKING), t = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr flag, p;
    int *value = landing();
    OK(cuMemAlloc_v2(&flag, 8));
    OK(cuMemAlloc_v2(&p, 400));
    OK(cuMemsetD32_v2(flag, 0, 2));
    OK(cuStreamWaitValue32_v2(s, flag, 5, CU_STREAM_WAIT_VALUE_GEQ));
    count_up(s, p, 100);
    OK(cuMemcpyDtoHAsync_v2(value, p + 396, 4, s));
    usleep(3000);
    EXPECT(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    OK(cuStreamWriteValue32_v2(t, flag, 6, 0));
    OK(cuStreamSynchronize(s));
    EQUAL(*value, 99);
}

/* A driver returns from a copy to pageable memory when it is done. */
static void pageable(void)
{
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr p;
    int value = -1;
    OK(cuMemAlloc_v2(&p, 400));
    spin(s, 20000000);
    count_up(s, p, 100);
    OK(cuMemcpyDtoHAsync_v2(&value, p + 396, 4, s));
    EQUAL(value, 99);
}

/* Large work runs beside its issuer, in order all the same. */
static void heavy_work(void)
{
    enum { N = 4 << 20 };
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr a, b;
    int last = 0;
    OK(cuMemAlloc_v2(&a, 4ull * N));
    OK(cuMemAlloc_v2(&b, 4ull * N));
    for (int i = 0; i < 5; i++) {
        OK(cuMemsetD32Async(a, 0, N, s));
        count_up(s, a, N);
        OK(cuMemcpyDtoDAsync_v2(b, a, 4ull * N, s));
    }
    OK(cuMemcpyDtoHAsync_v2(&last, b + 4ull * (N - 1), 4, s));
    OK(cuStreamSynchronize(s));
    EQUAL(last, N - 1);
    OK(cuMemFree_v2(a));
    OK(cuMemFree_v2(b));
}

static void *churn(void *argument)
{
    OK(cuCtxSetCurrent(context));
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 200; i++) {
        CUdeviceptr p, q;
        int value;
        OK(cuMemAlloc_v2(&p, 1000 * (size_t)(i % 7 + 1)));
        count_up(s, p, 250);
        OK(cuMemcpyDtoHAsync_v2(&value, p + 996, 4, s));
        OK(cuMemAllocAsync(&q, 1 << 21, s));
        OK(cuMemFreeAsync(q, s));
        OK(cuStreamSynchronize(s));
        EQUAL(value, 249);
        OK(cuMemFree_v2(p));
    }
    OK(cuStreamDestroy_v2(s));
    return argument;
}

static void threads(void)
{
    pthread_t t[64];
    size_t base = used_bytes();
    for (int i = 0; i < 64; i++)
        TRUE(pthread_create(&t[i], NULL, churn, NULL) == 0);
    for (int i = 0; i < 64; i++)
        pthread_join(t[i], NULL);
    EQUAL(used_bytes(), base);
}

static void forked(void)
{
    CUdeviceptr p;
    int status;
    OK(cuMemAlloc_v2(&p, 400));
    pid_t child = fork();
    if (child == 0) {
        EXPECT(cuMemAlloc_v2(&p, 4), CUDA_ERROR_NOT_INITIALIZED);
        EXPECT(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
        execl("/proc/self/exe", "self", "exact_time", (char *)NULL); /* a new program is a new process */
        _exit(9);
    }
    waitpid(child, &status, 0);
    EQUAL(status, 0);
    count_up(NULL, p, 100);
    OK(cuCtxSynchronize()); /* the parent was not affected */
}

static void nonsense(void)
{
    CUdeviceptr p;
    CUfunction f = function("stranger");
    int x;
    EXPECT(cuMemFree_v2(0x1234), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuStreamSynchronize((CUstream)0xdeadbeef), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuEventQuery((CUevent)0x40), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuLaunchKernel((CUfunction)&x, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuLaunchKernel(spin_ns, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuLaunchKernel(spin_ns, 1, 1, 1, 2048, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuLaunchKernel(vector_add, 1, 1, 1, 513, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 3; i++)
        EXPECT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT(cuMemAlloc_v2(NULL, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemAlloc_v2(&p, 1ull << 60), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(cuDeviceGet(&x, 99), CUDA_ERROR_INVALID_DEVICE);
    EXPECT(cuModuleGetFunction(&f, module, "no such"), CUDA_ERROR_NOT_FOUND);
    EXPECT(cuModuleLoadData(&module, "this is no image"), CUDA_ERROR_INVALID_PTX);
    EXPECT(cuCtxDestroy_v2((CUcontext)1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuGraphLaunch(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMulticastBindAddr(0, 0, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    CUstream s = stream(0);
    OK(cuStreamDestroy_v2(s));
    EXPECT(cuStreamSynchronize(s), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxSynchronize());
}

static void images(void)
{
    size_t offset, size, bytes;
    int value;
    unsigned int count;
    CUlibrary library;
    CUkernel kernel;
    CUdeviceptr p, table;
    OK(cuFuncGetParamInfo(function("stranger"), 0, &offset, &size));
    EQUAL(offset, 0);
    EQUAL(size, 24);
    OK(cuFuncGetParamInfo(vector_add, 3, &offset, &size));
    EQUAL(offset, 24);
    EQUAL(size, 4);
    EXPECT(cuFuncGetParamInfo(vector_add, 4, &offset, &size), CUDA_ERROR_INVALID_VALUE);
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, vector_add));
    EQUAL(value, 512);
    OK(cuModuleGetFunctionCount(&count, module));
    EQUAL(count, 6);
    OK(cuModuleGetGlobal_v2(&table, &bytes, module, "table"));
    EQUAL(bytes, 64);
    OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "iota"));
    OK(cuMemAlloc_v2(&p, 400));
    int n = 100;
    void *parameters[] = {&p, &n};
    OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL));
    OK(cuMemcpyDtoH_v2(&value, p + 396, 4));
    EQUAL(value, 99);
    struct {
        CUdeviceptr p;
        int n;
    } packed = {p, 50};
    bytes = 12;
    OK(cuMemsetD32_v2(p, 0, 100));
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    OK(cuLaunchKernel(iota, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra));
    OK(cuMemcpyDtoH_v2(&value, p + 4 * 31, 4));
    EQUAL(value, 31);
    OK(cuMemcpyDtoH_v2(&value, p + 4 * 32, 4));
    EQUAL(value, 0); /* the grid covered 32 elements */
    OK(cuLibraryUnload(library));
    int blocks, size_of_block;
    OK(cuOccupancyMaxPotentialBlockSize(&blocks, &size_of_block, vector_add, NULL, 0, 0));
    TRUE(size_of_block > 0 && size_of_block <= 512 && blocks > 0);
}

static int hits;

static void CUDA_CB hit(void *unused)
{
    (void)unused;
    hits++;
}

static void captured(void)
{
    size_t base = used_bytes(), count = 0;
    CUstream s = stream(CU_STREAM_NON_BLOCKING), t = stream(CU_STREAM_NON_BLOCKING);
    CUevent e = event(), f = event();
    CUdeviceptr a, w;
    CUgraph g;
    CUgraphExec x;
    static int out[1000];
    OK(cuMemAlloc_v2(&a, 4000));
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(t, e, 0));
    spin(t, 1000);
    EXPECT(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    count_up(s, a, 1000);
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(t, e, 0));
    spin(t, 1000000);
    spin(s, 1000000);
    OK(cuMemAllocAsync(&w, 10 << 20, s));
    OK(cuMemsetD32Async(w, 3, 1000, s));
    OK(cuMemFreeAsync(w, s));
    OK(cuMemcpyDtoHAsync_v2(out, a, 4000, s));
    OK(cuLaunchHostFunc(s, hit, NULL));
    OK(cuEventRecord(f, t));
    OK(cuStreamWaitEvent(s, f, 0));
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphGetNodes(g, NULL, &count));
    EQUAL(count, 8);
    EQUAL(out[999], 0); /* nothing has run */
    OK(cuGraphInstantiateWithFlags(&x, g, 0));
    for (int i = 0; i < 5; i++)
        OK(cuGraphLaunch(x, s));
    OK(cuStreamSynchronize(s));
    EQUAL(out[999], 999);
    EQUAL(hits, 5);
    OK(cuGraphExecDestroy(x));
    OK(cuGraphDestroy(g));
    OK(cuMemFree_v2(a));
    EQUAL(used_bytes(), base);
}

/* Copies between cards, access of one to the other's memory, and a wait of one for the other. */
static void two_cards(void)
{
    CUcontext second;
    CUdeviceptr here, there;
    CUstream s = stream(CU_STREAM_NON_BLOCKING), t;
    CUevent e = event();
    int value = 0, can;
    OK(cuMemAlloc_v2(&here, 4000));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxPushCurrent_v2(second));
    OK(cuMemAlloc_v2(&there, 4000));
    OK(cuMemsetD32_v2(there, 0, 1000));
    OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    OK(cuCtxPopCurrent_v2(NULL));
    spin(s, 20000000);
    count_up(s, here, 1000);
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(t, e, 0)); /* another context, another card */
    OK(cuCtxPushCurrent_v2(second));
    OK(cuMemcpyPeerAsync(there, second, here, context, 4000, t));
    EXPECT(cuStreamQuery(t), CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize(t));
    OK(cuEventQuery(e));
    OK(cuMemcpyDtoH_v2(&value, there + 3996, 4));
    EQUAL(value, 999);
    OK(cuCtxPopCurrent_v2(NULL));
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    EQUAL(can, 1);
    OK(cuCtxEnablePeerAccess(second, 0));
    EXPECT(cuCtxEnablePeerAccess(second, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    count_up(NULL, there, 10);
    OK(cuCtxSynchronize());
    OK(cuCtxDisablePeerAccess(second));
    count_up(NULL, there, 10);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxPushCurrent_v2(second));
    OK(cuMemFree_v2(there)); /* the other context is unaffected */
    OK(cuDevicePrimaryCtxRelease_v2(1));
}

/*
 * A program that closes descriptors that it did not open, and opens other files there, is not taken for dead
 * and harms no other process.
 */
static void descriptors_closed(void)
{
    CUdeviceptr p;
    int status, value;
    OK(cuMemAlloc_v2(&p, 400));
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    for (int fd = 3; fd < 8; fd++)
        TRUE(open("/dev/null", O_RDWR) == fd);
    for (int i = 0; i < 2; i++) {
        if (fork() == 0) {
            execl("/proc/self/exe", "self", "addresses", (char *)NULL); /* attaching searches for dead processes */
            _exit(9);
        }
        wait(&status);
        EQUAL(status, 0);
        usleep(110000);
    }
    EXPECT(cuMemAlloc_v2(&p, 1ull << 45), CUDA_ERROR_OUT_OF_MEMORY); /* and so does this */
    OK(cuMemAlloc_v2(&p, 400));
    count_up(NULL, p, 100);
    OK(cuMemcpyDtoH_v2(&value, p + 396, 4));
    EQUAL(value, 99);
}

/* A graph keeps a user object until it and its executables are destroyed. */
static void kept(void)
{
    CUuserObject object;
    CUgraph g;
    CUgraphExec x;
    hits = 0;
    OK(cuGraphCreate(&g, 0));
    OK(cuUserObjectCreate(&object, NULL, hit, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuGraphRetainUserObject(g, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    EXPECT(cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_VALUE); /* held by the graph, not by the program */
    EXPECT(cuGraphRetainUserObject(g, object, 1, CU_GRAPH_USER_OBJECT_MOVE), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuGraphRetainUserObject(g, object, 0x7FFFFFFF, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuUserObjectRetain(object, 2));
    EXPECT(cuUserObjectRelease(object, 3), CUDA_ERROR_INVALID_VALUE);
    OK(cuUserObjectRelease(object, 2));
    OK(cuGraphInstantiateWithFlags(&x, g, 0));
    OK(cuGraphDestroy(g));
    EQUAL(hits, 0);
    OK(cuGraphExecDestroy(x));
    EQUAL(hits, 1);
    EXPECT(cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_VALUE);
}

static void built(void)
{
    size_t base = used_bytes();
    static int out[100];
    int n = 100;
    CUdeviceptr a;
    CUgraph g, big;
    CUgraphNode k, fill, copy, child, take, give;
    CUgraphExec x, none;
    OK(cuMemAlloc_v2(&a, 400));
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphCreate(&big, 0));
    void *parameters[] = {&a, &n};
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = iota,
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 128,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = parameters};
    CUDA_MEMSET_NODE_PARAMS nines = {.dst = a, .value = 9, .elementSize = 4, .width = 10, .height = 1};
    CUDA_MEMCPY3D to_host = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                             .srcDevice = a,
                             .dstMemoryType = CU_MEMORYTYPE_HOST,
                             .dstHost = out,
                             .WidthInBytes = 400,
                             .Height = 1,
                             .Depth = 1};
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                                         .bytesize = 3 << 20};
    /* Added in the wrong order: dependencies decide. */
    OK(cuGraphAddMemcpyNode(&copy, g, NULL, 0, &to_host, context));
    OK(cuGraphAddMemsetNode(&fill, g, NULL, 0, &nines, context));
    OK(cuGraphAddKernelNode_v2(&k, g, NULL, 0, &kernel));
    OK(cuGraphAddDependencies(g, &k, &fill, 1));
    OK(cuGraphAddDependencies(g, &fill, &copy, 1));
    OK(cuGraphAddChildGraphNode(&child, big, NULL, 0, g));
    OK(cuGraphAddMemAllocNode(&take, big, &child, 1, &memory));
    OK(cuGraphAddMemFreeNode(&give, big, &take, 1, memory.dptr));
    EQUAL(used_bytes() - base, 512);
    OK(cuGraphInstantiateWithFlags(&x, big, 0));
    OK(cuGraphLaunch(x, NULL));
    OK(cuStreamSynchronize(NULL));
    EQUAL(used_bytes() - base, 512 + (4 << 20));
    EQUAL(out[0], 9);
    EQUAL(out[99], 99);
    OK(cuDeviceGraphMemTrim(0));
    EQUAL(used_bytes() - base, 512);
    OK(cuGraphAddDependencies(big, &give, &child, 1));
    EXPECT(cuGraphInstantiateWithFlags(&none, big, 0), CUDA_ERROR_INVALID_VALUE); /* a cycle */
    OK(cuGraphExecDestroy(x));
    OK(cuGraphInstantiateWithFlags(&x, g, 0));
    n = 50;
    OK(cuMemsetD32_v2(a, 0, 100));
    OK(cuGraphExecKernelNodeSetParams_v2(x, k, &kernel));
    OK(cuGraphLaunch(x, NULL));
    OK(cuStreamSynchronize(NULL));
    EQUAL(out[49], 49);
    EQUAL(out[50], 0);
    OK(cuGraphExecDestroy(x));
    OK(cuGraphDestroy(big));
    OK(cuGraphDestroy(g));
}

static void addresses(void)
{
    CUdriverProcAddressQueryResult status;
    void *old, *plain, *own;
    OK(cuGetProcAddress_v2("cuMemAlloc", &plain, 13000, 0, &status));
    EQUAL(status, CU_GET_PROC_ADDRESS_SUCCESS);
    TRUE(plain == (void *)cuMemAlloc_v2);
    OK(cuGetProcAddress_v2("cuMemAlloc", &old, 3000, 0, &status));
    TRUE(old == (void *)cuMemAlloc);
    OK(cuGetProcAddress_v2("cuLaunchKernel", &plain, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL));
    OK(cuGetProcAddress_v2("cuLaunchKernel", &own, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
                           NULL));
    TRUE(plain == (void *)cuLaunchKernel && own == (void *)cuLaunchKernel_ptsz);
    EXPECT(cuGetProcAddress_v2("cuGraphLaunch", &plain, 1000, 0, &status), CUDA_ERROR_NOT_FOUND);
    EQUAL(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    EXPECT(cuGetProcAddress_v2("cuNothing", &plain, 13000, 0, &status), CUDA_ERROR_NOT_FOUND);
    EQUAL(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT(cuGetProcAddress_v2(NULL, &plain, 13000, 0, &status), CUDA_ERROR_INVALID_VALUE);
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"exact_time", exact_time},
        {"exact_time_of_long_ago", exact_time_of_long_ago},
        {"host_function_holds_back", host_function_holds_back},
        {"default_streams", default_streams},
        {"values", values},
        {"destroyed_early", destroyed_early},
        {"pageable", pageable},
        {"kept", kept},
        {"two_cards", two_cards},
        {"descriptors_closed", descriptors_closed},
        {"heavy_work", heavy_work},
        {"threads", threads},
        {"forked", forked},
        {"nonsense", nonsense},
        {"images", images},
        {"captured", captured},
        {"built", built},
        {"addresses", addresses},
    };
    start();
    return run_check(checks, sizeof checks / sizeof checks[0], argc, argv);
}
