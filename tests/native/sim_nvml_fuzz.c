/*
 * Fuzzer of the simulated NVML: calls it with valid, foreign and absent handles, with buffers that are too
 * small, with counts and enumerations out of range, from two threads, while instances are created and
 * destroyed. Built with sanitizers.
 *
 *   usage: sim_nvml_fuzz SEED ROUNDS     (node from CALABASH_SIM)
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned long rounds;
static unsigned long made; /* instances that were created */
static char foreign[64];

struct dice {
    unsigned int state;
};

static unsigned int roll(struct dice *d, unsigned int below)
{
    d->state = d->state * 1664525u + 1013904223u;
    return (d->state >> 8) % below;
}

static nvmlDevice_t some_device(struct dice *d)
{
    nvmlDevice_t device = NULL, mig = NULL;

    switch (roll(d, 8)) {
    case 0:
        return NULL;
    case 1:
        return (nvmlDevice_t)(void *)(foreign + roll(d, sizeof foreign));
    case 2:
        nvmlDeviceGetHandleByIndex_v2(0, &device);
        nvmlDeviceGetMigDeviceHandleByIndex(device, roll(d, 8), &mig);
        return mig;
    default:
        nvmlDeviceGetHandleByIndex_v2(roll(d, 4), &device);
        return device;
    }
}

/* Text of exactly the size that the callee is told, on the heap, so that one byte too many is detected. */
static void texts(struct dice *d, nvmlDevice_t device)
{
    unsigned int size = roll(d, 100);
    char *text = malloc(size ? size : 1);

    nvmlDeviceGetName(device, text, size);
    nvmlDeviceGetUUID(device, text, size);
    nvmlDeviceGetSerial(device, text, size);
    nvmlDeviceGetBoardPartNumber(device, text, size);
    nvmlDeviceGetVbiosVersion(device, text, size);
    nvmlSystemGetDriverVersion(text, size);
    nvmlSystemGetProcessName(roll(d, 70000), text, size);
    nvmlDeviceGetName(device, NULL, size);
    free(text);
}

static void lists(struct dice *d, nvmlDevice_t device)
{
    unsigned int count = roll(d, 6), n;
    void *array = malloc(count ? count * sizeof(nvmlProcessInfo_t) : 1);
    void *samples = malloc(count ? count * sizeof(nvmlSample_t) : 1);
    void *shares = malloc(count ? count * sizeof(nvmlProcessUtilizationSample_t) : 1);
    nvmlGpuInstancePlacement_t *places = malloc(count ? count * sizeof *places : 1);
    unsigned long *words = malloc(count ? count * sizeof *words : 1);
    unsigned int *clocks = malloc(count ? count * sizeof *clocks : 1);
    nvmlFieldValue_t *fields = calloc(count + 1, sizeof *fields);
    nvmlValueType_t type;

    n = count, nvmlDeviceGetComputeRunningProcesses_v3(device, &n, array);
    n = count, nvmlDeviceGetComputeRunningProcesses_v3(device, &n, NULL);
    n = count, nvmlDeviceGetSamples(device, (nvmlSamplingType_t)roll(d, 12), roll(d, 2), &type, &n, samples);
    n = count, nvmlDeviceGetProcessUtilization(device, shares, &n, (unsigned long long)roll(d, 3) << 60);
    n = count, nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, roll(d, 25), places, &n);
    n = count, nvmlDeviceGetSupportedGraphicsClocks(device, roll(d, 2) ? 1215 : 1, &n, clocks);
    nvmlDeviceGetCpuAffinity(device, count, words);
    nvmlDeviceGetMemoryAffinity(device, count, words, (nvmlAffinityScope_t)roll(d, 3));
    for (unsigned int i = 0; i < count; i++)
        fields[i].fieldId = roll(d, 300), fields[i].scopeId = roll(d, 30);
    nvmlDeviceGetFieldValues(device, (int)count, fields);
    free(array), free(samples), free(shares), free(places), free(words), free(clocks), free(fields);
}

static void figures(struct dice *d, nvmlDevice_t device)
{
    unsigned int u, v, link = roll(d, 20), profile = roll(d, 25);
    unsigned long long big;
    nvmlUtilization_t utilization;
    nvmlMemory_v2_t memory = {.version = roll(d, 2) ? nvmlMemory_v2 : 7};
    nvmlPciInfo_t pci;
    nvmlGpuInstanceProfileInfo_v3_t info = {.version =
                                                roll(d, 2) ? nvmlGpuInstanceProfileInfo_v3 : roll(d, 99)};
    nvmlEnableState_t state, other;
    nvmlIntNvLinkDeviceType_t kind;

    nvmlDeviceGetMemoryInfo_v2(device, &memory);
    nvmlDeviceGetUtilizationRates(device, &utilization);
    nvmlDeviceGetClock(device, (nvmlClockType_t)roll(d, 6), (nvmlClockId_t)roll(d, 6), &u);
    nvmlDeviceGetTemperatureThreshold(device, (nvmlTemperatureThresholds_t)roll(d, 10), &u);
    nvmlDeviceGetMemoryErrorCounter(device, (nvmlMemoryErrorType_t)roll(d, 4),
                                    (nvmlEccCounterType_t)roll(d, 4), (nvmlMemoryLocation_t)roll(d, 10),
                                    &big);
    nvmlDeviceGetNvLinkState(device, link, &state);
    nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &pci);
    nvmlDeviceGetNvLinkRemoteDeviceType(device, link, &kind);
    nvmlDeviceGetGpuInstanceProfileInfoV(device, profile, (nvmlGpuInstanceProfileInfo_v2_t *)&info);
    nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile, &u);
    nvmlDeviceGetMigMode(device, &u, &v);
    nvmlDeviceGetEccMode(device, &state, &other);
    nvmlDeviceGetTotalEnergyConsumption(device, &big);
    nvmlDeviceGetUtilizationRates(device, NULL);
    nvmlDeviceGetPciInfo_v3(device, NULL);
}

/* Create an instance anywhere, perhaps with a compute instance, and perhaps leave it. */
static void instances(struct dice *d, nvmlDevice_t device)
{
    static const unsigned int profiles[] = {19, 20, 15, 14, 9, 5, 0, 3, 1000};
    unsigned int profile = profiles[roll(d, 9)];
    nvmlGpuInstancePlacement_t at = {.start = roll(d, 10), .size = roll(d, 10)};
    nvmlGpuInstance_t gi = NULL;
    nvmlComputeInstance_t ci = NULL;
    nvmlGpuInstanceInfo_t info;
    nvmlComputeInstanceInfo_t ci_info;

    if (roll(d, 2))
        nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, &at, &gi);
    else
        nvmlDeviceCreateGpuInstance(device, profile, &gi);
    if (nvmlGpuInstanceGetInfo(gi, &info) == NVML_SUCCESS) __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED);
    nvmlGpuInstanceCreateComputeInstance(gi, roll(d, 9), &ci);
    nvmlComputeInstanceGetInfo_v2(ci, &ci_info);
    if (roll(d, 2)) nvmlComputeInstanceDestroy(ci);
    if (nvmlDeviceGetGpuInstanceById(device, roll(d, 9), &gi) == NVML_SUCCESS) {
        if (nvmlGpuInstanceGetComputeInstanceById(gi, roll(d, 2), &ci) == NVML_SUCCESS)
            nvmlComputeInstanceDestroy(ci);
        nvmlGpuInstanceDestroy(gi);
    }
    nvmlGpuInstanceDestroy((nvmlGpuInstance_t)(void *)foreign);
}

static void *work(void *argument)
{
    struct dice d = {*(unsigned int *)argument};

    for (unsigned long i = 0; i < rounds; i++) {
        nvmlDevice_t device = some_device(&d);

        texts(&d, device);
        lists(&d, device);
        figures(&d, device);
        instances(&d, device);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t other;
    unsigned int seed = argc > 1 ? (unsigned int)strtoul(argv[1], NULL, 10) : 1, second = seed + 1;
    nvmlDevice_t device;
    nvmlReturn_t status;

    rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 100;
    work(&seed); /* before the start: everything is refused */
    if (nvmlInit_v2() != NVML_SUCCESS || nvmlDeviceGetHandleByIndex_v2(0, &device) != NVML_SUCCESS) return 1;
    nvmlDeviceSetMigMode(device, 1, &status);
    pthread_create(&other, NULL, work, &second);
    work(&seed);
    pthread_join(other, NULL);
    nvmlShutdown();
    printf("made %lu instances\n", made);
    return 0;
}
