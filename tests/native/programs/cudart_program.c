/*
 * A plain program of the CUDA runtime, as a user would write it: `cudart_program CHECK` performs one check.
 * Built against CUDA 12 and 13, with the shared and with the static runtime.
 */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT 100000

#define OK(call)                                                                                   \
    do {                                                                                           \
        cudaError_t code = (call);                                                                 \
        if (code != cudaSuccess) {                                                                 \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(code)); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

static const char image[] =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    ".visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n"
    "{\n    ret;\n}\n"
    ".visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n)\n"
    "{\n    ret;\n}\n"
    ".visible .entry spin_ns(.param .u64 ns)\n"
    "{\n    ret;\n}\n";

static cudaKernel_t kernel(const char *name)
{
    static cudaLibrary_t library;
    cudaKernel_t found;
    if (!library) OK(cudaLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    OK(cudaLibraryGetKernel(&found, library, name));
    return found;
}

static void launch(const char *name, cudaStream_t stream, void **arguments, unsigned n)
{
    cudaLaunchConfig_t config = {
        .gridDim = {(n + 255) / 256, 1, 1}, .blockDim = {256, 1, 1}, .stream = stream};
    OK(cudaLaunchKernelExC(&config, (const void *)kernel(name), arguments));
}

static void devices(void)
{
    int count = 0, major = 0, minor = 0, runtime = 0, driver = 0;
    struct cudaDeviceProp properties;
    char bus[32];
    OK(cudaGetDeviceCount(&count));
    OK(cudaRuntimeGetVersion(&runtime));
    OK(cudaDriverGetVersion(&driver));
    CHECK(runtime == CUDART_VERSION && driver >= runtime);
    for (int i = 0; i < count; i++) {
        OK(cudaGetDeviceProperties(&properties, i));
        OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i));
        OK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i));
        CHECK(properties.major == major && properties.minor == minor && properties.warpSize == 32);
        OK(cudaDeviceGetPCIBusId(bus, sizeof bus, i));
        printf("%s|%zu|%d.%d|%d|%s\n", properties.name, properties.totalGlobalMem, major, minor,
               properties.multiProcessorCount, bus);
    }
}

static void copies(void)
{
    unsigned char *there, *managed, *pinned, *here = malloc(COUNT), *back = malloc(COUNT);
    size_t before, after, total, pitch;
    void *plane;
    OK(cudaFree(NULL));
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMalloc((void **)&there, 64 << 20));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(before - after >= 64 << 20 && before <= total);
    for (int i = 0; i < COUNT; i++)
        here[i] = (unsigned char)(i * 7);
    OK(cudaMemcpy(there, here, COUNT, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(there + (1 << 20), there, COUNT, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(back, there + (1 << 20), COUNT, cudaMemcpyDefault));
    CHECK(memcmp(here, back, COUNT) == 0);
    OK(cudaMemset(there, 0x5A, COUNT));
    OK(cudaMemcpy(back, there, COUNT, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++)
        CHECK(back[i] == 0x5A);
    OK(cudaMallocPitch(&plane, &pitch, 100, 10));
    CHECK(pitch >= 100);
    OK(cudaMemcpy2D(plane, pitch, here, 100, 100, 10, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(back, 100, plane, pitch, 100, 10, cudaMemcpyDeviceToHost));
    CHECK(memcmp(here, back, 1000) == 0);
    OK(cudaMallocHost((void **)&pinned, COUNT));
    OK(cudaMallocManaged((void **)&managed, COUNT, cudaMemAttachGlobal));
    memcpy(pinned, here, COUNT);
    OK(cudaMemcpy(managed, pinned, COUNT, cudaMemcpyDefault));
    OK(cudaDeviceSynchronize());
    CHECK(memcmp(managed, here, COUNT) == 0);
    struct cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, there));
    CHECK(attributes.type == cudaMemoryTypeDevice);
    OK(cudaPointerGetAttributes(&attributes, pinned));
    CHECK(attributes.type == cudaMemoryTypeHost);
    OK(cudaFree(managed));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(plane));
    OK(cudaFree(there));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after == before);
    CHECK(cudaMalloc((void **)&there, total * 2) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
}

static void pools(void)
{
    float *there, here[256], back[256];
    cudaStream_t stream;
    cudaMemPool_t pool;
    uint64_t used = 1;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMallocAsync((void **)&there, sizeof here, stream));
    for (int i = 0; i < 256; i++)
        here[i] = (float)i;
    OK(cudaMemcpyAsync(there, here, sizeof here, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(back, there, sizeof here, cudaMemcpyDeviceToHost, stream));
    OK(cudaFreeAsync(there, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(memcmp(here, back, sizeof here) == 0);
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    CHECK(used == 0);
    OK(cudaStreamDestroy(stream));
}

static void fill_inputs(float **a, float **b, float **c, float *here)
{
    for (int i = 0; i < COUNT; i++)
        here[i] = (float)i;
    OK(cudaMalloc((void **)a, COUNT * sizeof(float)));
    OK(cudaMalloc((void **)b, COUNT * sizeof(float)));
    OK(cudaMalloc((void **)c, COUNT * sizeof(float)));
    OK(cudaMemcpy(*a, here, COUNT * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(*b, here, COUNT * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudaMemset(*c, 0, COUNT * sizeof(float)));
}

static void kernels(void)
{
    float *a, *b, *c, *here = malloc(COUNT * sizeof *here), factor = 3;
    unsigned n = COUNT;
    fill_inputs(&a, &b, &c, here);
    launch("vector_add", NULL, (void *[]){&a, &b, &c, &n}, n);
    launch("saxpy", NULL, (void *[]){&factor, &a, &c, &n}, n);
    OK(cudaMemcpy(here, c, COUNT * sizeof *here, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++)
        CHECK(here[i] == 5 * (float)i);
    CHECK(cudaLibraryGetKernel(&(cudaKernel_t){0}, NULL, "vector_add") != cudaSuccess);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void events(void)
{
    cudaStream_t one, two;
    cudaEvent_t start, end;
    float took;
    unsigned long long ns = 20000000;
    OK(cudaStreamCreate(&one));
    OK(cudaStreamCreateWithPriority(&two, cudaStreamNonBlocking, -1));
    OK(cudaEventCreate(&start));
    OK(cudaEventCreateWithFlags(&end, cudaEventBlockingSync));
    double began = now_ms();
    OK(cudaEventRecord(start, one));
    launch("spin_ns", one, (void *[]){&ns}, 1);
    OK(cudaEventRecord(end, one));
    CHECK(cudaEventQuery(end) == cudaErrorNotReady);
    OK(cudaStreamWaitEvent(two, end, 0));
    CHECK(cudaStreamQuery(two) == cudaErrorNotReady);
    OK(cudaStreamSynchronize(two));
    OK(cudaEventQuery(end));
    OK(cudaEventElapsedTime(&took, start, end));
    CHECK(took >= 20 && took <= now_ms() - began + 1);
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(end));
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
}

static void CUDART_CB count_up(void *counter)
{
    ++*(int *)counter;
}

static void graphs(void)
{
    float *a, *b, *c, *here = malloc(COUNT * sizeof *here), *back = malloc(COUNT * sizeof *back);
    unsigned n = COUNT;
    int called = 0;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    enum cudaStreamCaptureStatus status;
    size_t nodes = 0;
    fill_inputs(&a, &b, &c, here);
    kernel("vector_add");
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    launch("vector_add", stream, (void *[]){&a, &b, &c, &n}, n);
    OK(cudaMemcpyAsync(back, c, COUNT * sizeof *back, cudaMemcpyDeviceToHost, stream));
    OK(cudaLaunchHostFunc(stream, count_up, &called));
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(stream, &graph));
    CHECK(called == 0);
    OK(cudaGraphGetNodes(graph, NULL, &nodes));
    CHECK(nodes == 3);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++)
        OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(called == 3);
    for (int i = 0; i < COUNT; i++)
        CHECK(back[i] == 2 * here[i]);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
}

static void entry_points(void)
{
    enum cudaDriverEntryPointQueryResult result;
    int (*get_count)(int *) = NULL;
    void *old = NULL, *young = NULL, *threaded = NULL;
    int count = 0;
    OK(cudaGetDriverEntryPointByVersion("cuDeviceGetCount", (void **)&get_count, 12000, cudaEnableDefault,
                                        &result));
    CHECK(result == cudaDriverEntryPointSuccess && get_count(&count) == 0 && count > 0);
    OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &old, 2000, cudaEnableDefault, &result));
    OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &young, 12000, cudaEnableDefault, &result));
    CHECK(old && young && old != young);
    OK(cudaGetDriverEntryPointByVersion("cuLaunchKernel", &old, 12000, cudaEnableLegacyStream, &result));
    OK(cudaGetDriverEntryPointByVersion("cuLaunchKernel", &threaded, 12000, cudaEnablePerThreadDefaultStream,
                                        &result));
    CHECK(old && threaded && old != threaded);
    cudaGetDriverEntryPointByVersion("cuLaunchKernelEx", &old, 11000, cudaEnableDefault, &result);
    CHECK(result == cudaDriverEntryPointVersionNotSufficent);
    cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &old, 12000, cudaEnableDefault, &result);
    CHECK(result == cudaDriverEntryPointSymbolNotFound);
}

static void reset(void)
{
    void *there;
    size_t before, after, total;
    OK(cudaSetDevice(0));
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMalloc(&there, 32 << 20));
    OK(cudaDeviceReset());
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after == before);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } checks[] = {
        {"devices", devices}, {"copies", copies}, {"pools", pools},        {"kernels", kernels},
        {"events", events},   {"graphs", graphs}, {"entry", entry_points}, {"reset", reset},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        if (argc == 2 && strcmp(argv[1], checks[i].name) == 0) {
            checks[i].run();
            puts("done");
            return 0;
        }
    }
    fprintf(stderr, "usage: %s CHECK\n", argv[0]);
    return 2;
}
