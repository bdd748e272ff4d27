/*
 * A program that loads a simulated card: `spin COUNT NS` prints how long the kernels took on the card in
 * milliseconds, `hammer SEED MIB` allocates and frees pieces of up to that size in all families until it is
 * killed, `fill MIB` allocates pieces of that size until the card is full and prints the bytes, `wait` holds a
 * context and answers each line of input with the result of a launch and a wait, `orphan` leaves a child
 * behind, `tenant SECONDS NS` prints how much memory is reported and how much it gets, and keeps it while it
 * launches kernels of that length.
 */
#include "sim_cuda_check.h"

static int spinning(int count, unsigned long long ns)
{
    CUevent begin, end;
    float ms;
    OK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    puts("ready");
    fflush(stdout);
    getchar();
    OK(cuEventRecord(begin, NULL));
    for (int i = 0; i < count; i++)
        spin(NULL, ns);
    OK(cuEventRecord(end, NULL));
    OK(cuEventSynchronize(end));
    OK(cuEventElapsedTime(&ms, begin, end));
    printf("%.6f\n", (double)ms);
    return 0;
}

static void hammer(unsigned int seed, unsigned int most_mib)
{
    CUdeviceptr held[64] = {0};
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    puts("ready");
    fflush(stdout);
    getchar();
    for (;;) {
        unsigned int i = (unsigned int)rand_r(&seed) % 64, what = (unsigned int)rand_r(&seed) % 5;
        size_t bytes = (size_t)rand_r(&seed) % (most_mib << 20) + 1;
        if (held[i]) {
            OK(cuMemFree_v2(held[i]));
            held[i] = 0;
        }
        CUresult result = CUDA_SUCCESS;
        CUmemGenericAllocationHandle h;
        if (what == 0) {
            result = cuMemAlloc_v2(&held[i], bytes);
        } else if (what == 1) {
            result = cuMemAllocManaged(&held[i], bytes, CU_MEM_ATTACH_GLOBAL);
        } else if (what == 2) {
            result = cuMemAllocAsync(&held[i], bytes, s);
        } else if (what == 3) {
            result = cuMemCreate(&h, (bytes + (2u << 20)) & ~((2ull << 20) - 1), &prop, 0);
            if (result == CUDA_SUCCESS) OK(cuMemRelease(h));
        } else {
            spin(s, 20000);
        }
        if (result != CUDA_SUCCESS) {
            held[i] = 0;
            EXPECT(result, CUDA_ERROR_OUT_OF_MEMORY);
        }
    }
}

static void fill(size_t mib)
{
    unsigned long long taken = 0;
    CUdeviceptr p;
    while (cuMemAlloc_v2(&p, mib << 20) == CUDA_SUCCESS)
        taken += mib << 20;
    printf("%llu\n", taken);
}

static void tenant(double seconds, unsigned long long ns)
{
    unsigned long long taken = 0;
    size_t total;
    CUdeviceptr p;
    OK(cuDeviceTotalMem_v2(&total, 0));
    for (size_t bytes = 64u << 20; bytes >= 1u << 20; bytes /= 2)
        while (cuMemAlloc_v2(&p, bytes) == CUDA_SUCCESS)
            taken += bytes;
    printf("%zu %llu\n", total, taken);
    fflush(stdout);
    /* Two batches ahead, so that the card does not wait for the processor. */
    CUevent done[2];
    for (int i = 0; i < 2; i++) {
        OK(cuEventCreate(&done[i], CU_EVENT_DEFAULT));
        OK(cuEventRecord(done[i], NULL));
    }
    double end = now_s() + seconds;
    for (int turn = 0; now_s() < end; turn ^= 1) {
        OK(cuEventSynchronize(done[turn]));
        for (int i = 0; i < 16; i++)
            spin(NULL, ns);
        OK(cuEventRecord(done[turn], NULL));
    }
    OK(cuCtxSynchronize());
}

static void answer(void)
{
    char line[64];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long ns = 1000;
        CUdeviceptr p;
        void *parameters[] = {&ns};
        CUresult launched = cuLaunchKernel(spin_ns, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
        CUresult waited = cuCtxSynchronize(), allocated = cuMemAlloc_v2(&p, 1 << 20);
        printf("%d %d %d\n", launched, waited, allocated);
        fflush(stdout);
    }
}

/*
 * A child that never calls the driver, and survives when its parent is killed. The parent is ready once the
 * child has run: until then the child still holds what fork gave it, including the driver's descriptor.
 */
static void orphan(void)
{
    CUdeviceptr p;
    int up[2];
    char byte = 0;
    OK(cuMemAlloc_v2(&p, 64 << 20));
    if (pipe(up) != 0) exit(3);
    if (fork() == 0) {
        close(0);
        close(1);
        if (write(up[1], &byte, 1) != 1) _exit(3);
        sleep(5);
        _exit(0);
    }
    if (read(up[0], &byte, 1) != 1) exit(3);
    puts("ready");
    fflush(stdout);
    getchar();
}

static void devices(void)
{
    int count;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++) {
        CUuuid u;
        OK(cuDeviceGetUuid_v2(&u, i));
        for (int k = 0; k < 16; k++)
            printf("%02x%s", (unsigned char)u.bytes[k], k == 3 || k == 5 || k == 7 || k == 9 ? "-" : "");
        puts("");
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "init") == 0) return (int)cuInit(0);
    if (argc > 1 && strcmp(argv[1], "devices") == 0) {
        devices();
        return 0;
    }
    start();
    if (argc > 3 && strcmp(argv[1], "spin") == 0) return spinning(atoi(argv[2]), strtoull(argv[3], NULL, 10));
    if (argc > 3 && strcmp(argv[1], "hammer") == 0)
        hammer((unsigned int)atoi(argv[2]), (unsigned int)atoi(argv[3]));
    if (argc > 2 && strcmp(argv[1], "fill") == 0) fill(strtoul(argv[2], NULL, 10));
    if (argc > 3 && strcmp(argv[1], "tenant") == 0) tenant(atof(argv[2]), strtoull(argv[3], NULL, 10));
    if (argc > 1 && strcmp(argv[1], "wait") == 0) answer();
    if (argc > 1 && strcmp(argv[1], "orphan") == 0) orphan();
    return 0;
}
