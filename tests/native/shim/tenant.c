/*
 * A tenant's program, linked with the driver: tenant COMMAND [NUMBER...]. Each function describes its command;
 * the Python tests read its output.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define TRY(call)                                           \
    do {                                                    \
        CUresult answer_ = (call);                          \
        if (answer_ != CUDA_SUCCESS) {                      \
            printf("%s answers %d\n", #call, (int)answer_); \
            fflush(stdout);                                 \
            _exit(1);                                       \
        }                                                   \
    } while (0)

static CUcontext context;

static void start(void)
{
    TRY(cuInit(0));
    TRY(cuDevicePrimaryCtxRetain(&context, 0));
    TRY(cuCtxSetCurrent(context));
}

static size_t free_bytes(void)
{
    size_t left, total;
    TRY(cuMemGetInfo(&left, &total));
    return left;
}

/* One family of memory: allocates about `bytes`, and frees them. */
struct family {
    const char *name;
    CUresult (*take)(void **what, size_t bytes);
    void (*give)(void *what);
};

struct mapped {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    size_t size;
};

static CUmemoryPool own_pool;
static CUstream own_stream;

static CUresult take_linear(void **what, size_t bytes)
{
    return cuMemAlloc((CUdeviceptr *)what, bytes);
}
static CUresult take_managed(void **what, size_t bytes)
{
    return cuMemAllocManaged((CUdeviceptr *)what, bytes, CU_MEM_ATTACH_GLOBAL);
}
static CUresult take_pitched(void **what, size_t bytes)
{
    size_t pitch;
    return cuMemAllocPitch((CUdeviceptr *)what, &pitch, 1000, (bytes + 999) / 1000, 4);
}
static void give_linear(void *what)
{
    TRY(cuMemFree((CUdeviceptr)(uintptr_t)what));
}
static CUresult take_async(void **what, size_t bytes)
{
    return cuMemAllocAsync((CUdeviceptr *)what, bytes, own_stream);
}
static CUresult take_from_pool(void **what, size_t bytes)
{
    if (own_pool == NULL) {
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
        TRY(cuMemPoolCreate(&own_pool, &props));
    }
    return cuMemAllocFromPoolAsync((CUdeviceptr *)what, bytes, own_pool, own_stream);
}
static void give_async(void *what)
{
    TRY(cuMemFreeAsync((CUdeviceptr)(uintptr_t)what, own_stream));
    TRY(cuStreamSynchronize(own_stream));
}
static CUresult take_mapped(void **what, size_t bytes)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    struct mapped *mapped = malloc(sizeof(*mapped));
    size_t granularity;
    TRY(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    mapped->size = (bytes + granularity - 1) / granularity * granularity;
    CUresult result = cuMemCreate(&mapped->handle, mapped->size, &prop, 0);
    if (result != CUDA_SUCCESS) {
        free(mapped);
        return result;
    }
    TRY(cuMemAddressReserve(&mapped->address, mapped->size, 0, 0, 0));
    TRY(cuMemMap(mapped->address, mapped->size, 0, mapped->handle, 0));
    TRY(cuMemRelease(mapped->handle)); /* the mapping alone keeps it from here on */
    *what = mapped;
    return CUDA_SUCCESS;
}
static void give_mapped(void *what)
{
    struct mapped *mapped = what;
    TRY(cuMemUnmap(mapped->address, mapped->size));
    TRY(cuMemAddressFree(mapped->address, mapped->size));
    free(mapped);
}
static CUresult take_array(void **what, size_t bytes)
{
    CUDA_ARRAY_DESCRIPTOR d = {
        .Width = 256, .Height = (bytes + 1023) / 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return cuArrayCreate((CUarray *)what, &d);
}
static CUresult take_volume(void **what, size_t bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 64,
                                 .Height = 64,
                                 .Depth = (bytes + 16383) / 16384,
                                 .Format = CU_AD_FORMAT_UNSIGNED_INT16,
                                 .NumChannels = 2};
    return cuArray3DCreate((CUarray *)what, &d);
}
static void give_array(void *what)
{
    TRY(cuArrayDestroy(what));
}
static CUresult take_mipmap(void **what, size_t bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {
        .Width = 256, .Height = (bytes + 1023) / 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return cuMipmappedArrayCreate((CUmipmappedArray *)what, &d, 3);
}
static void give_mipmap(void *what)
{
    TRY(cuMipmappedArrayDestroy(what));
}

static const struct family families[] = {
    {"linear", take_linear, give_linear},   {"managed", take_managed, give_linear},
    {"pitched", take_pitched, give_linear}, {"async", take_async, give_async},
    {"pool", take_from_pool, give_async},   {"mapped", take_mapped, give_mapped},
    {"array", take_array, give_array},      {"volume", take_volume, give_array},
    {"mipmap", take_mipmap, give_mipmap},
};
#define FAMILIES (sizeof(families) / sizeof(families[0]))

/* families BYTES: for each family its name, what it allocated and what is still missing after it was freed. */
static int do_families(char **numbers)
{
    size_t bytes = strtoull(numbers[0], NULL, 10);
    start();
    TRY(cuStreamCreate(&own_stream, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < FAMILIES; i++) {
        void *what = NULL;
        size_t before = free_bytes();
        TRY(families[i].take(&what, bytes));
        size_t during = free_bytes();
        families[i].give(what);
        printf("%s %zu %zd\n", families[i].name, before - during, (ssize_t)before - (ssize_t)free_bytes());
    }
    return 0;
}

/* fill FAMILY BYTES: allocates BYTES again and again until refused; prints how often, and the error. */
static int do_fill(char **numbers)
{
    size_t bytes = strtoull(numbers[1], NULL, 10);
    unsigned taken = 0;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    start();
    TRY(cuStreamCreate(&own_stream, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < FAMILIES; i++) {
        if (strcmp(families[i].name, numbers[0]) != 0) continue;
        void *what = NULL;
        while ((result = families[i].take(&what, bytes)) == CUDA_SUCCESS)
            taken++;
    }
    printf("%u %d\n", taken, (int)result);
    fflush(stdout);
    return 0;
}

/*
 * hammer SECONDS SEED [FAMILIES]: allocates and frees in all families, or in those of a mask, at random until
 * the time is up; prints the numbers of allocations and refusals.
 */
static int do_hammer(char **numbers)
{
    enum { HELD = 48 };
    void *held[HELD] = {0};
    unsigned family[HELD] = {0}, seed = (unsigned)atoi(numbers[1]), taken = 0, refused = 0;
    unsigned mask = numbers[2] != NULL ? (unsigned)atoi(numbers[2]) : ~0u;
    struct timespec now, end;
    start();
    TRY(cuStreamCreate(&own_stream, CU_STREAM_NON_BLOCKING));
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += atoi(numbers[0]);
    do {
        unsigned i = (unsigned)rand_r(&seed) % HELD;
        if (held[i] != NULL) {
            families[family[i]].give(held[i]);
            held[i] = NULL;
        } else {
            do {
                family[i] = (unsigned)rand_r(&seed) % FAMILIES;
            } while ((mask & 1u << family[i]) == 0);
            size_t bytes = 1 + (size_t)rand_r(&seed) % ((rand_r(&seed) & 1) != 0 ? 65536 : 4 * MIB);
            CUresult result = families[family[i]].take(&held[i], bytes);
            if (result == CUDA_ERROR_OUT_OF_MEMORY) {
                held[i] = NULL;
                refused++;
            } else {
                TRY(result);
                taken++;
            }
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
    for (unsigned i = 0; i < HELD; i++)
        if (held[i] != NULL) families[family[i]].give(held[i]);
    printf("%u %u\n", taken, refused);
    return 0;
}

/*
 * beyond BYTES: allocates linear memory until refused and tries what managed memory does not support with the
 * last allocation; prints how much was allocated, whether the last is managed, and the results.
 */
static int do_beyond(char **numbers)
{
    size_t bytes = strtoull(numbers[0], NULL, 10), taken = 0;
    unsigned managed = 0;
    CUdeviceptr pointer = 0, last = 0;
    CUipcMemHandle handle;
    int file = -1;
    start();
    while (cuMemAlloc(&pointer, bytes) == CUDA_SUCCESS) {
        last = pointer;
        taken += bytes;
    }
    TRY(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, last));
    CUresult ipc = cuIpcGetMemHandle(&handle, last);
    CUresult range = cuMemGetHandleForAddressRange(&file, last, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    TRY(cuMemFree(last));
    printf("%zu %u %d %d %zu\n", taken, managed, (int)ipc, (int)range, free_bytes());
    return 0;
}

/* hold BYTES: allocates, prints "ready", and waits to be killed. */
static int do_hold(char **numbers)
{
    CUdeviceptr pointer;
    start();
    TRY(cuMemAlloc(&pointer, strtoull(numbers[0], NULL, 10)));
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}

/* alloc BYTES: one allocation; prints the result. Ends without freeing it, as most programs do. */
static int do_alloc(char **numbers)
{
    CUdeviceptr pointer;
    start();
    printf("%d\n", (int)cuMemAlloc(&pointer, strtoull(numbers[0], NULL, 10)));
    return 0;
}

/* exec BYTES: allocates, then executes another program that allocates as much. */
static int do_exec(char **numbers)
{
    CUdeviceptr pointer;
    start();
    TRY(cuMemAlloc(&pointer, strtoull(numbers[0], NULL, 10)));
    execl("/proc/self/exe", "tenant", "alloc", numbers[0], NULL);
    return 1;
}

/* view: prints what the program sees of its device. */
static int do_view(char **numbers)
{
    size_t left, total, whole;
    int count;
    (void)numbers;
    start();
    TRY(cuMemGetInfo(&left, &total));
    TRY(cuMemGetInfo(NULL, NULL));
    TRY(cuDeviceTotalMem(&whole, 0));
    TRY(cuDeviceGetCount(&count));
    printf("%zu %zu %zu %d\n", left, total, whole, count);
    return 0;
}

/* init: prints the result of cuInit. */
static int do_init(char **numbers)
{
    (void)numbers;
    printf("%d\n", (int)cuInit(0));
    return 0;
}

/*
 * fork BYTES: a parent that has not yet used the GPU forks; both allocate; then only the parent's use must be
 * left.
 */
static int do_fork(char **numbers)
{
    size_t bytes = strtoull(numbers[0], NULL, 10), before, total;
    CUdeviceptr pointer;
    int ready[2], go[2], status;
    char byte = 0;
    if (pipe(ready) != 0 || pipe(go) != 0) return 1;
    pid_t pid = fork();
    if (pid == 0) {
        start();
        TRY(cuMemAlloc(&pointer, bytes));
        if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1) _exit(1);
        TRY(cuMemFree(pointer));
        _exit(0);
    }
    start();
    before = free_bytes();
    TRY(cuMemAlloc(&pointer, bytes));
    if (read(ready[0], &byte, 1) != 1) return 1;
    size_t both = free_bytes();
    if (write(go[1], &byte, 1) != 1) return 1;
    waitpid(pid, &status, 0);
    TRY(cuMemGetInfo(&before, &total));
    printf("%zu %zu %d\n", total - both, total - before, status);
    return 0;
}

/* late-fork BYTES: a parent that holds memory forks a child that only exits; the parent frees its memory
 * afterwards. */
static int do_late_fork(char **numbers)
{
    CUdeviceptr pointer;
    int status;
    size_t before, during;
    start();
    before = free_bytes();
    TRY(cuMemAlloc(&pointer, strtoull(numbers[0], NULL, 10)));
    pid_t pid = fork();
    if (pid == 0) {
        CUresult result = cuMemFree(pointer); /* the child must not free it */
        _exit(result == CUDA_SUCCESS);
    }
    waitpid(pid, &status, 0);
    during = free_bytes();
    TRY(cuMemFree(pointer));
    printf("%zu %zu %d\n", before - during, before - free_bytes(), status);
    return 0;
}

static void *thread_main(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    TRY(cuCtxSetCurrent(context));
    for (int i = 0; i < 300; i++) {
        void *what = NULL;
        const struct family *family = &families[(unsigned)rand_r(&seed) % FAMILIES];
        CUresult result = family->take(&what, 1 + (size_t)rand_r(&seed) % (2 * MIB));
        if (result == CUDA_SUCCESS)
            family->give(what);
        else if (result != CUDA_ERROR_OUT_OF_MEMORY)
            TRY(result);
    }
    return NULL;
}

/* threads COUNT: threads in all families at once; prints what is missing afterwards. */
static int do_threads(char **numbers)
{
    pthread_t threads[64];
    int count = atoi(numbers[0]);
    void *what;
    start();
    TRY(cuStreamCreate(&own_stream, CU_STREAM_NON_BLOCKING));
    size_t before = free_bytes();
    TRY(take_from_pool(&what, 512));
    give_async(what);
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, thread_main, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    TRY(cuMemPoolTrimTo(own_pool, 0));
    printf("%zd\n", (ssize_t)before - (ssize_t)free_bytes());
    return 0;
}

/*
 * contexts: the cost of two contexts, their memory and their end, as four readings of free memory relative to
 * the first.
 */
static int do_contexts(char **numbers)
{
    CUcontext other;
    CUdeviceptr pointer;
    size_t at[4];
    (void)numbers;
    start();
    at[0] = free_bytes();
    TRY(cuCtxCreate(&other, NULL, 0, 0));
    TRY(cuMemAlloc(&pointer, 8 * MIB));
    at[1] = free_bytes();
    TRY(cuCtxDestroy(other));
    TRY(cuCtxSetCurrent(context));
    at[2] = free_bytes();
    TRY(cuDevicePrimaryCtxRelease(0));
    TRY(cuDevicePrimaryCtxRetain(&context, 0));
    TRY(cuCtxSetCurrent(context));
    at[3] = free_bytes();
    printf("%zd %zd %zd\n", (ssize_t)(at[0] - at[1]), (ssize_t)(at[0] - at[2]), (ssize_t)(at[0] - at[3]));
    return 0;
}

/* many-contexts COUNT: how many contexts fit, and the error that ended it; then their end frees everything. */
static int do_many_contexts(char **numbers)
{
    int wanted = atoi(numbers[0]), made = 0;
    CUcontext contexts[64];
    CUresult answer = CUDA_SUCCESS;
    TRY(cuInit(0));
    while (made < wanted && made < 64 && (answer = cuCtxCreate(&contexts[made], NULL, 0, 0)) == CUDA_SUCCESS)
        made++;
    printf("%d %d\n", made, (int)answer);
    fflush(stdout);
    if (numbers[1] != NULL && strcmp(numbers[1], "stay") == 0) pause();
    while (made > 0)
        TRY(cuCtxDestroy(contexts[--made]));
    return 0;
}

/* module BYTES WAY: free memory that a variable of so many bytes takes from its load to its unload. */
static int do_module(char **numbers)
{
    char text[512];
    const char *way = numbers[1] != NULL ? numbers[1] : "module";
    CUmodule module = NULL;
    CUlibrary library = NULL;
    CUdeviceptr pointer;
    size_t bytes;
    start();
    snprintf(text, sizeof(text),
             ".version 7.0\n.target sm_50\n.address_size 64\n.visible .global .align 8 .b8 big[%s];\n", numbers[0]);
    ssize_t before = (ssize_t)free_bytes();
    CUresult result;
    if (strcmp(way, "file") == 0) {
        char name[] = "/tmp/module-XXXXXX";
        int fd = mkstemp(name);
        if (fd < 0 || write(fd, text, strlen(text)) < 0 || close(fd) != 0) return 1;
        result = cuModuleLoad(&module, name);
        unlink(name);
    } else if (strcmp(way, "library") == 0) {
        result = cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0);
    } else {
        result = cuModuleLoadData(&module, text);
    }
    ssize_t loaded = before - (ssize_t)free_bytes();
    if (result == CUDA_SUCCESS && library != NULL)
        TRY(cuLibraryGetGlobal(&pointer, &bytes, library, "big"));
    else if (result == CUDA_SUCCESS)
        TRY(cuModuleGetGlobal(&pointer, &bytes, module, "big"));
    ssize_t asked = before - (ssize_t)free_bytes();
    if (library != NULL) TRY(cuLibraryUnload(library));
    if (module != NULL) TRY(cuModuleUnload(module));
    printf("%d %zd %zd %zd\n", (int)result, loaded, asked, before - (ssize_t)free_bytes());
    return 0;
}

/* spin SECONDS: one kernel after the other. */
static int do_spin(char **numbers)
{
    static const char text[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                               ".visible .entry spin_ns(.param .u64 ns)\n{\nret;\n}\n";
    CUmodule module;
    CUfunction function;
    unsigned long long ns = 2000000;
    void *arguments[] = {&ns};
    start();
    TRY(cuModuleLoadData(&module, text));
    TRY(cuModuleGetFunction(&function, module, "spin_ns"));
    printf("ready\n");
    fflush(stdout);
    for (long i = 0; i < 500 * atol(numbers[0]); i++) {
        TRY(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
        if (i % 8 == 7) TRY(cuCtxSynchronize());
    }
    return 0;
}

/* again BYTES: for each line read, one allocation that is freed at once; prints its result. */
static int do_again(char **numbers)
{
    size_t bytes = strtoull(numbers[0], NULL, 10);
    char line[16];
    CUdeviceptr pointer;
    start();
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        CUresult result = cuMemAlloc(&pointer, bytes);
        if (result == CUDA_SUCCESS) TRY(cuMemFree(pointer));
        printf("%d\n", (int)result);
        fflush(stdout);
    }
    return 0;
}

/* reuse BYTES: stream-ordered frees that were not waited for make room for the next allocation. */
static int do_reuse(char **numbers)
{
    size_t bytes = strtoull(numbers[0], NULL, 10);
    CUdeviceptr pointer;
    start();
    TRY(cuStreamCreate(&own_stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 5; i++) {
        TRY(cuMemAllocAsync(&pointer, bytes - (size_t)i * 4 * MIB, own_stream));
        TRY(cuMemsetD8Async(pointer, 1, bytes / 2, own_stream));
        TRY(cuMemFreeAsync(pointer, own_stream));
    }
    printf("0\n");
    return 0;
}

/* reset: memory of three families does not outlive the reset of its context. */
static int do_reset(char **numbers)
{
    void *what;
    (void)numbers;
    start();
    size_t base = free_bytes();
    TRY(cuStreamCreate(&own_stream, CU_STREAM_NON_BLOCKING));
    TRY(take_linear(&what, 4 * MIB));
    TRY(take_async(&what, 4 * MIB));
    TRY(take_array(&what, 4 * MIB));
    size_t during = base - free_bytes();
    TRY(cuDevicePrimaryCtxReset(0));
    TRY(cuDevicePrimaryCtxRetain(&context, 0));
    TRY(cuCtxSetCurrent(context));
    printf("%zu %zd\n", during, (ssize_t)(base - free_bytes()));
    return 0;
}

/* vmm: references and mappings of one block, as readings of what it costs. */
static int do_vmm(char **numbers)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr address;
    size_t size = 4 * MIB, base;
    (void)numbers;
    start();
    base = free_bytes();
    TRY(cuMemCreate(&handle, size, &prop, 0));
    printf("created %zu\n", base - free_bytes());
    TRY(cuMemAddressReserve(&address, 2 * size, 0, 0, 0));
    TRY(cuMemMap(address, size, 0, handle, 0));
    TRY(cuMemMap(address + size, size, 0, handle, 0));
    TRY(cuMemRelease(handle));
    printf("released %zu\n", base - free_bytes());
    TRY(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(address + size)));
    TRY(cuMemUnmap(address, 2 * size));
    printf("unmapped %zu\n", base - free_bytes());
    TRY(cuMemRelease(again));
    printf("gone %zu\n", base - free_bytes());
    TRY(cuMemAddressFree(address, 2 * size));
    return 0;
}

static CUgraphExec graph_with_memory(size_t bytes, int frees, CUdeviceptr *address, CUresult *answer)
{
    CUgraph graph;
    CUgraphNode allocating, freeing;
    CUgraphExec exec = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
        .bytesize = bytes};
    TRY(cuGraphCreate(&graph, 0));
    TRY(cuGraphAddMemAllocNode(&allocating, graph, NULL, 0, &params));
    *address = params.dptr;
    if (frees) TRY(cuGraphAddMemFreeNode(&freeing, graph, &allocating, 1, params.dptr));
    *answer = cuGraphInstantiate(&exec, graph, 0);
    TRY(cuGraphDestroy(graph));
    return exec;
}

/* graph BYTES: a graph that allocates and frees, launched thrice; then one whose memory is freed outside. */
static int do_graph(char **numbers)
{
    size_t bytes = strtoull(numbers[0], NULL, 10), base;
    CUdeviceptr address;
    CUresult result;
    start();
    TRY(cuStreamCreate(&own_stream, CU_STREAM_NON_BLOCKING));
    base = free_bytes();
    CUgraphExec exec = graph_with_memory(bytes, 1, &address, &result);
    if (result == CUDA_SUCCESS) result = cuGraphUpload(exec, own_stream);
    for (int i = 0; i < 3 && result == CUDA_SUCCESS; i++)
        result = cuGraphLaunch(exec, own_stream);
    TRY(cuStreamSynchronize(own_stream));
    printf("launched %d %zu\n", (int)result, base - free_bytes());
    if (exec != NULL) TRY(cuGraphExecDestroy(exec));
    TRY(cuDeviceGraphMemTrim(0));
    printf("trimmed %zu\n", base - free_bytes());
    exec = graph_with_memory(bytes, 0, &address, &result);
    if (result == CUDA_SUCCESS) result = cuGraphLaunch(exec, own_stream);
    TRY(cuStreamSynchronize(own_stream));
    printf("kept %d %zu\n", (int)result, base - free_bytes());
    if (result == CUDA_SUCCESS) TRY(cuMemFreeAsync(address, own_stream));
    TRY(cuStreamSynchronize(own_stream));
    TRY(cuDeviceGraphMemTrim(0));
    printf("freed %zu\n", base - free_bytes());
    return 0;
}

/* capture BYTES: an allocation under capture takes nothing; the launches of the captured graph do. */
static int do_capture(char **numbers)
{
    size_t bytes = strtoull(numbers[0], NULL, 10), base;
    CUdeviceptr address;
    CUgraph graph;
    CUgraphExec exec;
    start();
    TRY(cuStreamCreate(&own_stream, CU_STREAM_NON_BLOCKING));
    base = free_bytes();
    TRY(cuStreamBeginCapture(own_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    TRY(cuMemAllocAsync(&address, bytes, own_stream));
    TRY(cuMemsetD8Async(address, 7, bytes, own_stream));
    TRY(cuMemFreeAsync(address, own_stream));
    TRY(cuStreamEndCapture(own_stream, &graph));
    printf("captured %zu\n", base - free_bytes());
    TRY(cuGraphInstantiate(&exec, graph, 0));
    TRY(cuGraphLaunch(exec, own_stream));
    TRY(cuGraphLaunch(exec, own_stream));
    TRY(cuStreamSynchronize(own_stream));
    printf("launched %zu\n", base - free_bytes());
    TRY(cuGraphExecDestroy(exec));
    TRY(cuGraphDestroy(graph));
    TRY(cuDeviceGraphMemTrim(0));
    printf("gone %zu\n", base - free_bytes());
    return 0;
}

static const struct {
    const char *name;
    int (*run)(char **numbers);
} actions[] = {
    {"families", do_families},   {"fill", do_fill},       {"hammer", do_hammer},     {"hold", do_hold},
    {"alloc", do_alloc},         {"view", do_view},       {"init", do_init},         {"fork", do_fork},
    {"late-fork", do_late_fork}, {"threads", do_threads}, {"contexts", do_contexts}, {"vmm", do_vmm},
    {"again", do_again}, {"spin", do_spin}, {"module", do_module}, {"many-contexts", do_many_contexts}, {"reuse", do_reuse},         {"reset", do_reset},     {"exec", do_exec},         {"graph", do_graph},
    {"capture", do_capture},     {"beyond", do_beyond},
};

int main(int count, char **arguments)
{
    char *none[4] = {(char *)"0", (char *)"0", (char *)"0", NULL};
    for (unsigned i = 0; count > 1 && i < sizeof(actions) / sizeof(actions[0]); i++)
        if (strcmp(actions[i].name, arguments[1]) == 0)
            return actions[i].run(count > 2 ? arguments + 2 : none);
    return 2;
}
