/*
 * Tenants that attack their limits. Each prints one line when its attack is done, as far as it was possible,
 * and then lives until its standard input ends.
 *
 *   hostile hold MIB               allocates memory: "held MIB"
 *   hostile loose MIB              the same, with every other descriptor closed
 *   hostile daemon MIB             the same in a grandchild in a session of its own; the program itself ends
 *   hostile bare MIB               the same, executed again without the preload
 *   hostile barely KERNELS US      kernels without the preload
 *   hostile contexts N             creates contexts: "contexts OPENED RESULT"
 *   hostile again MIB TIMES        from its first moment on allocates so much and frees it: "succeeded N"
 *   hostile handles MIB            looks up the driver by a dlsym that dlvsym found: "took MIB"
 *   hostile copy FILE MIB          a copy of the driver under another name in a new namespace: "took MIB"
 *   hostile forge WHAT KERNELS US  kernels, while a thread overwrites the usage page: "forging"
 *   hostile seen                   unsets CUDA_VISIBLE_DEVICES and counts devices: "cuda N nvml M"
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"
#include "page/page.h"

static CUcontext context;

static void say(const char *what, size_t number)
{
    printf("%s %zu\n", what, number);
    fflush(stdout);
}

static void stay(void)
{
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    exit(0);
}

static void start(void)
{
    CUdevice device;
    driver_open();
    CHECK(d_cuInit(0));
    CHECK(d_cuDeviceGet(&device, 0));
    CHECK(d_cuDevicePrimaryCtxRetain(&context, device));
    CHECK(d_cuCtxSetCurrent(context));
}

/* Allocate blocks until refused, up to so much. */
static size_t take(size_t mib)
{
    size_t held = 0;
    CUdeviceptr pointer;
    for (size_t block = mib >= 64 ? 64 : mib; held < mib; held += block)
        if (d_cuMemAlloc(&pointer, block << 20) != CUDA_SUCCESS) break;
    return held;
}

static int hold(char **words)
{
    start();
    say("held", take((size_t)atoll(words[0])));
    stay();
    return 0;
}

static int loose(char **words)
{
    start();
    size_t held = take((size_t)atoll(words[0]));
    close_range(3, ~0u, 0);
    say("held", held);
    stay();
    return 0;
}

static int daemonise(char **words)
{
    if (fork() > 0) _exit(0);
    setsid();
    if (fork() > 0) _exit(0);
    close_range(3, ~0u, 0);
    start();
    close_range(3, ~0u, 0);
    say("held", take((size_t)atoll(words[0])));
    for (;;)
        pause();
    return 0;
}

static int anew(const char *command, char **words)
{
    unsetenv("LD_PRELOAD");
    execl("/proc/self/exe", "hostile", command, words[0], words[0] ? words[1] : NULL, words[0] && words[1] ? words[2] : NULL,
          NULL);
    return 1;
}

static int bare(char **words)
{
    return anew("hold", words);
}

static void *run_kernels(const char *kernels, unsigned long long kernel_ns)
{
    enum { DEPTH = 16 };
    CUfunction function;
    CUstream stream;
    CUevent done[DEPTH];
    CHECK(d_cuModuleGetFunction(&function, load_kernels(kernels), "spin_ns"));
    CHECK(d_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < DEPTH; i++)
        CHECK(d_cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
    void *arguments[] = {&kernel_ns};
    for (uint64_t i = 0;; i++) {
        if (i >= DEPTH) CHECK(d_cuEventSynchronize(done[i % DEPTH]));
        CHECK(d_cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
        CHECK(d_cuEventRecord(done[i % DEPTH], stream));
    }
    return NULL;
}

static int kernels(char **words)
{
    start();
    say("running", 1);
    run_kernels(words[0], strtoull(words[1], NULL, 10) * 1000);
    return 0;
}

static int barely(char **words)
{
    return anew("kernels", words);
}

static int contexts(char **words)
{
    CUresult (*create)(CUcontext *, unsigned, CUdevice);
    start();
    *(void **)&create = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxCreate_v2");
    size_t opened = 0;
    CUresult result = CUDA_SUCCESS;
    while (opened < (size_t)atoll(words[0]) && (result = create(&context, 0, 0)) == CUDA_SUCCESS)
        opened++;
    say(result == CUDA_SUCCESS ? "contexts" : "refused after", opened);
    stay();
    return 0;
}

static int again(char **words)
{
    CUresult (*give)(CUdeviceptr);
    size_t succeeded = 0;
    start();
    *(void **)&give = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemFree_v2");
    for (long long i = atoll(words[1]); i > 0; i--) {
        CUdeviceptr pointer;
        if (d_cuMemAlloc(&pointer, (size_t)atoll(words[0]) << 20) == CUDA_SUCCESS && give(pointer) == CUDA_SUCCESS)
            succeeded++;
        usleep(4000);
    }
    say("succeeded", succeeded);
    return 0;
}

/* Allocate memory by functions that `look_up` finds in `library`. */
static size_t take_by(void *(*look_up)(void *, const char *), void *library, size_t mib)
{
    CUresult (*init)(unsigned), (*retain)(CUcontext *, CUdevice), (*current)(CUcontext), (*alloc)(CUdeviceptr *, size_t);
    *(void **)&init = look_up(library, "cuInit");
    *(void **)&retain = look_up(library, "cuDevicePrimaryCtxRetain");
    *(void **)&current = look_up(library, "cuCtxSetCurrent");
    *(void **)&alloc = look_up(library, "cuMemAlloc_v2");
    if (init == NULL || retain == NULL || current == NULL || alloc == NULL) return 0;
    CUdeviceptr pointer;
    if (init(0) != CUDA_SUCCESS || retain(&context, 0) != CUDA_SUCCESS || current(context) != CUDA_SUCCESS) return 0;
    size_t held = 0;
    for (; held < mib && alloc(&pointer, (size_t)64 << 20) == CUDA_SUCCESS; held += 64) {
    }
    return held;
}

static int handles(char **words)
{
    void *(*look_up)(void *, const char *) = NULL;
    *(void **)&look_up = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (look_up == NULL) *(void **)&look_up = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (look_up == NULL) {
        void *libc = dlopen("libc.so.6", RTLD_NOW);
        *(void **)&look_up = dlsym(libc, "dlsym");
    }
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    say("took", take_by(look_up, library, (size_t)atoll(words[0])));
    stay();
    return 0;
}

static int libc_handle(char **words)
{
    void *(*look_up)(void *, const char *) = NULL;
    *(void **)&look_up = dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym");
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    say("took", take_by(look_up, library, (size_t)atoll(words[0])));
    stay();
    return 0;
}

static int copy(char **words)
{
    void *library = dlmopen(LM_ID_NEWLM, words[0], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        say("took", 0);
        stay();
    }
    say("took", take_by(dlsym, library, (size_t)atoll(words[1])));
    stay();
    return 0;
}

static const char *forgery;

static void *forge(void *memory)
{
    volatile struct cb_usage *usage = memory;
    volatile struct cb_usage_device *device = &usage->device[0];
    unsigned seed = 1;
    for (;;) {
        if (strcmp(forgery, "charged") == 0) {
            device->charged_ns = 0;
            device->launch_count = 0;
        } else if (strcmp(forgery, "bucket") == 0) {
            device->bucket_ns = 1000000000;
            device->bucket_time_ns = now_ns();
        } else if (strcmp(forgery, "demand") == 0) {
            device->waiting_count = 1000000;
            device->inflight_count = 1000000;
            device->inflight_ns = 1ull << 60;
            device->kernel_ns_max = 1ull << 60;
            device->demand_ns = now_ns();
        } else { /* random values anywhere behind the head, now and then */
            unsigned at = (unsigned)rand_r(&seed) % (sizeof(struct cb_usage) - 4096);
            ((volatile unsigned char *)usage)[4096 + at] = (unsigned char)rand_r(&seed);
            if ((rand_r(&seed) & 255) != 0) continue;
        }
        usleep(20);
    }
    return NULL;
}

static int forging(char **words)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/usage", getenv("CALABASH_SLOT"));
    int file = open(path, O_RDWR);
    void *memory = mmap(NULL, sizeof(struct cb_usage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    pthread_t thread;
    if (memory == MAP_FAILED) {
        printf("no page: %s\n", strerror(errno));
        fflush(stdout);
        stay();
    }
    forgery = words[0];
    start();
    if (pthread_create(&thread, NULL, forge, memory) != 0) return 66;
    say("forging", 1);
    run_kernels(words[1], strtoull(words[2], NULL, 10) * 1000);
    return 0;
}

static int count(char **words)
{
    (void)words;
    int cuda = -1;
    unsigned nvml = 0;
    unsigned (*nvml_init)(void), (*nvml_count)(unsigned *);
    driver_open();
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    *(void **)&nvml_init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml_count = dlsym(library, "nvmlDeviceGetCount_v2");
    if (d_cuInit(0) == CUDA_SUCCESS) d_cuDeviceGetCount(&cuda);
    if (nvml_init() == 0) nvml_count(&nvml);
    printf("cuda %d nvml %u\n", cuda, nvml);
    fflush(stdout);
    stay();
    return 0;
}

static int seen(char **words)
{
    (void)words;
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("NVIDIA_VISIBLE_DEVICES");
    execl("/proc/self/exe", "hostile", "count", NULL);
    return 1;
}

static const struct {
    const char *name;
    int (*run)(char **);
} commands[] = {{"hold", hold},         {"loose", loose},     {"daemon", daemonise}, {"bare", bare},
                {"kernels", kernels},   {"barely", barely},   {"contexts", contexts}, {"again", again}, {"handles", handles},
                {"libc-handle", libc_handle}, {"copy", copy}, {"forge", forging},    {"count", count},
                {"seen", seen}};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argv + 2);
    return 64;
}
