/*
 * A client of the multi-process service that executes commands: prints `ready RESULT SMS`, then answers each
 * line of its input. `spin COUNT NS`: the milliseconds of as many kernels and the result; `for SECONDS NS`: the
 * number of kernels of that length done in the time; `card COUNT NS`: the card's milliseconds of as many
 * kernels, queued ahead so that nothing depends on the load of the processor; `alloc MIB`, `fault` (a kernel
 * that accesses an invalid address), `call`: the result.
 */
#include "sim_cuda_check.h"

static CUresult wait_all(void)
{
    return cuCtxSynchronize();
}

static CUresult begin(int *sms)
{
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS) result = cuDeviceGetAttribute(sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
    if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, 0);
    if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS) result = cuModuleLoadData(&module, image);
    if (result != CUDA_SUCCESS) return result;
    iota = function("iota");
    spin_ns = function("spin_ns");
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction f, void *first, void *second)
{
    void *p[] = {first, second};
    return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, p, NULL);
}

static void spinning(int count, unsigned long long ns)
{
    double from = now_s();
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = launch(spin_ns, &ns, NULL);
    if (result == CUDA_SUCCESS) result = wait_all();
    printf("%.3f %d\n", (now_s() - from) * 1e3, result);
}

/* Batches ahead of the card, so that it never waits for the processor. */
static void lasting(double seconds, unsigned long long ns)
{
    CUevent done[2];
    unsigned long long count = 0, last[2] = {0, 0};
    double end = now_s() + seconds;
    for (int i = 0; i < 2; i++) {
        OK(cuEventCreate(&done[i], CU_EVENT_DEFAULT));
        OK(cuEventRecord(done[i], NULL));
    }
    for (int turn = 0; now_s() < end; turn ^= 1) {
        if (cuEventSynchronize(done[turn]) != CUDA_SUCCESS) break;
        count += last[turn];
        last[turn] = 8;
        for (int i = 0; i < 8; i++)
            launch(spin_ns, &ns, NULL);
        cuEventRecord(done[turn], NULL);
    }
    printf("%llu %d\n", count, wait_all());
}

static void on_card(int count, unsigned long long ns)
{
    CUevent begin, end;
    float milliseconds = 0.0f;
    OK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    unsigned long long lead_ns = 20 * ns;
    CUresult result = launch(spin_ns, &lead_ns, NULL); /* while it runs the others are queued */
    if (result == CUDA_SUCCESS) result = cuEventRecord(begin, NULL);
    for (int i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = launch(spin_ns, &ns, NULL);
    if (result == CUDA_SUCCESS) result = cuEventRecord(end, NULL);
    if (result == CUDA_SUCCESS) result = wait_all();
    if (result == CUDA_SUCCESS) result = cuEventElapsedTime(&milliseconds, begin, end);
    printf("%.3f %d\n", (double)milliseconds, result);
}

static void fault(void)
{
    CUdeviceptr nowhere = 0x10;
    int n = 1;
    CUresult launched = launch(iota, &nowhere, &n), waited = wait_all();
    printf("%d\n", launched != CUDA_SUCCESS ? launched : waited);
}

int main(void)
{
    char line[128];
    int sms = 0, count;
    double seconds;
    unsigned long long amount;
    CUresult result = begin(&sms);
    printf("ready %d %d\n", result, sms);
    fflush(stdout);
    while (result == CUDA_SUCCESS && fgets(line, sizeof line, stdin)) {
        CUdeviceptr p;
        if (sscanf(line, "spin %d %llu", &count, &amount) == 2)
            spinning(count, amount);
        else if (sscanf(line, "card %d %llu", &count, &amount) == 2)
            on_card(count, amount);
        else if (sscanf(line, "for %lf %llu", &seconds, &amount) == 2)
            lasting(seconds, amount);
        else if (sscanf(line, "alloc %llu", &amount) == 1)
            printf("%d\n", cuMemAlloc_v2(&p, amount << 20));
        else if (strncmp(line, "fault", 5) == 0)
            fault();
        else
            printf("%d\n", wait_all());
        fflush(stdout);
    }
    return 0;
}
