/*
 * `resolved_program CHECK VERSION FLAGS`: works as the runtime API's library does, without linking a CUDA
 * library: every function comes from dlopen, dlsym of cuGetProcAddress_v2, and cuGetProcAddress with this
 * version and these flags (1: default stream of the process, 2: of the thread).
 */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 100000
#define BYTES (COUNT * sizeof(float))

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)
#define OK(name, ...)                                                            \
    do {                                                                         \
        CUresult code = CALL(name, __VA_ARGS__);                                 \
        if (code != CUDA_SUCCESS) {                                              \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #name, code); \
            exit(1);                                                             \
        }                                                                        \
    } while (0)
#define CALL(name, ...) ((__typeof__(name) *)resolve(#name))(__VA_ARGS__)

static __typeof__(cuGetProcAddress) *get_address;
static int version;
static cuuint64_t flags;

static void *resolve(const char *symbol)
{
    char name[64];
    snprintf(name, sizeof name, "%s",
             symbol); /* <cuda.h> defines it as cuMemAlloc_v2; the base name is looked up */
    char *suffix = strrchr(name, '_');
    if (suffix && suffix[1] == 'v') *suffix = 0;
    void *found = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult code = get_address(name, &found, version, flags, &status);
    if (code != CUDA_SUCCESS || !found || status != CU_GET_PROC_ADDRESS_SUCCESS) {
        fprintf(stderr, "%s is not resolved: %d, status %d\n", name, code, status);
        exit(1);
    }
    return found;
}

static const char image[] =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    ".visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n"
    "{\n    ret;\n}\n"
    ".visible .entry spin_ns(.param .u64 ns)\n"
    "{\n    ret;\n}\n";

static CUfunction function(const char *name)
{
    static CUlibrary library;
    CUkernel kernel;
    CUfunction found;
    if (!library) OK(cuLibraryLoadData, &library, image, NULL, NULL, 0, NULL, NULL, 0);
    OK(cuLibraryGetKernel, &kernel, library, name);
    OK(cuKernelGetFunction, &found, kernel);
    return found;
}

static void launch(const char *name, CUstream stream, void **arguments)
{
    CUlaunchConfig config = {.gridDimX = (COUNT + 255) / 256,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 256,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    OK(cuLaunchKernelEx, &config, function(name), arguments, NULL);
}

static void fill(CUdeviceptr *a, CUdeviceptr *b, float *here)
{
    for (int i = 0; i < COUNT; i++)
        here[i] = (float)i;
    OK(cuMemAlloc, a, BYTES);
    OK(cuMemAlloc, b, BYTES);
    OK(cuMemcpyHtoD, *a, here, BYTES);
    OK(cuMemsetD8, *b, 0, BYTES);
}

static void memory(void)
{
    size_t before, after, total;
    CUdeviceptr a, b;
    float *here = malloc(BYTES), *back = malloc(BYTES);
    OK(cuMemGetInfo, &before, &total);
    fill(&a, &b, here);
    OK(cuMemcpyDtoD, b, a, BYTES);
    OK(cuMemcpyDtoH, back, b, BYTES);
    CHECK(memcmp(here, back, BYTES) == 0);
    OK(cuMemFree, a);
    OK(cuMemFree, b);
    OK(cuMemGetInfo, &after, &total);
    CHECK(before == after && after <= total);
    CHECK(CALL(cuMemAlloc, &a, total * 2) == CUDA_ERROR_OUT_OF_MEMORY);
}

static void pools(void)
{
    CUstream stream;
    CUdeviceptr there;
    CUmemoryPool pool;
    cuuint64_t used = 1;
    float *here = calloc(1, BYTES), *back = malloc(BYTES);
    here[7] = 7;
    OK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    OK(cuMemAllocAsync, &there, BYTES, stream);
    OK(cuMemcpyHtoDAsync, there, here, BYTES, stream);
    OK(cuMemcpyDtoHAsync, back, there, BYTES, stream);
    OK(cuMemFreeAsync, there, stream);
    OK(cuStreamSynchronize, stream);
    CHECK(memcmp(here, back, BYTES) == 0);
    OK(cuDeviceGetDefaultMemPool, &pool, 0);
    OK(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    CHECK(used == 0);
    OK(cuStreamDestroy, stream);
}

static void events(void)
{
    CUstream one, two;
    CUevent start, end;
    float took = 0;
    unsigned long long ns = 20000000;
    function("spin_ns");
    OK(cuStreamCreateWithPriority, &one, CU_STREAM_NON_BLOCKING, -1);
    OK(cuStreamCreate, &two, CU_STREAM_NON_BLOCKING);
    OK(cuEventCreate, &start, CU_EVENT_DEFAULT);
    OK(cuEventCreate, &end, CU_EVENT_DEFAULT);
    OK(cuEventRecord, start, one);
    launch("spin_ns", one, (void *[]){&ns});
    OK(cuEventRecord, end, one);
    CHECK(CALL(cuEventQuery, end) == CUDA_ERROR_NOT_READY);
    OK(cuStreamWaitEvent, two, end, 0);
    CHECK(CALL(cuStreamQuery, two) == CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize, two);
    OK(cuEventElapsedTime, &took, start, end);
    CHECK(took >= 20);
}

static void CUDA_CB count_up(void *counter)
{
    ++*(int *)counter;
}

static void graphs(void)
{
    CUdeviceptr a, b;
    float *here = malloc(BYTES), *back = malloc(BYTES);
    int n = COUNT, called = 0;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUstreamCaptureStatus status;
    size_t nodes = 0;
    fill(&a, &b, here);
    function("vector_add");
    OK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    launch("vector_add", stream, (void *[]){&a, &a, &b, &n});
    OK(cuMemcpyDtoHAsync, back, b, BYTES, stream);
    OK(cuLaunchHostFunc, stream, count_up, &called);
    OK(cuStreamIsCapturing, stream, &status);
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamEndCapture, stream, &graph);
    CHECK(called == 0);
    OK(cuGraphGetNodes, graph, NULL, &nodes);
    CHECK(nodes == 3);
    OK(cuGraphInstantiateWithFlags, &exec, graph, 0);
    for (int i = 0; i < 3; i++)
        OK(cuGraphLaunch, exec, stream);
    OK(cuStreamSynchronize, stream);
    CHECK(called == 3);
    for (int i = 0; i < COUNT; i++)
        CHECK(back[i] == 2 * here[i]);
    OK(cuGraphExecDestroy, exec);
    OK(cuGraphDestroy, graph);
}

static void *work_of_another_thread(void *context)
{
    unsigned long long ns = 200000000;
    OK(cuCtxSetCurrent, context);
    launch("spin_ns", NULL, (void *[]){&ns});
    return NULL;
}

/* Stream 0 of this thread waits for another thread's stream 0 only if they are the same. */
static void default_stream(void)
{
    CUcontext context;
    pthread_t other;
    function("spin_ns");
    OK(cuCtxGetCurrent, &context);
    CHECK(pthread_create(&other, NULL, work_of_another_thread, context) == 0);
    CHECK(pthread_join(other, NULL) == 0);
    CUresult answer = CALL(cuStreamQuery, NULL);
    CHECK(answer ==
          (flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY));
}

static void names(void)
{
    CUdriverProcAddressQueryResult status;
    void *old = NULL, *young = NULL, *legacy = NULL, *threaded = NULL;
    CHECK(get_address("cuMemAlloc", &old, 2000, 0, &status) == CUDA_SUCCESS);
    CHECK(get_address("cuMemAlloc", &young, 3020, 0, &status) == CUDA_SUCCESS);
    CHECK(old && young && old != young);
    CHECK(get_address("cuLaunchKernel", &legacy, version, 1, &status) == CUDA_SUCCESS);
    CHECK(get_address("cuLaunchKernel", &threaded, version, 2, &status) == CUDA_SUCCESS);
    CHECK(legacy && threaded && legacy != threaded);
    get_address("cuLaunchKernelEx", &old, 11000, 0, &status);
    CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    get_address("cuNoSuchFunction", &old, version, 0, &status);
    CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } checks[] = {
        {"memory", memory}, {"pools", pools}, {"events", events},
        {"graphs", graphs}, {"names", names}, {"default-stream", default_stream},
    };
    CUcontext context;
    CHECK(argc == 4);
    version = atoi(argv[2]);
    flags = (cuuint64_t)atoi(argv[3]);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(driver != NULL);
    get_address = (__typeof__(get_address))dlsym(driver, "cuGetProcAddress_v2");
    CHECK(get_address != NULL);
    OK(cuInit, 0);
    OK(cuDevicePrimaryCtxRetain, &context, 0);
    OK(cuCtxSetCurrent, context);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        if (strcmp(argv[1], checks[i].name) == 0) {
            checks[i].run();
            puts("done");
            return 0;
        }
    }
    return 2;
}
