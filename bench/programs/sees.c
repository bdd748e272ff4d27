/*
 * Report of the cards that a program in a container sees: `sees LABEL [FILE] [hold]` writes one line of JSON,
 * at the end of FILE or, for "-", on its output: for every device its UUID by CUDA and by NVML, its size by
 * cuDeviceTotalMem, cuMemGetInfo and NVML, and the results of an allocation of half of it and of one that is
 * larger than all of it. `hold`: then waits for the end of its input. Neither library is linked: the loader
 * finds what was put into the container.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEVICES_MAX = 8, LINE_MAX_BYTES = 4000 };

struct nvml_memory {
    unsigned long long total, free, used;
};

static void *cuda, *nvml;

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s is missing\n", name);
        exit(4);
    }
    return found;
}

static void need(const char *what, int result)
{
    if (result != 0) {
        fprintf(stderr, "%s gave %d\n", what, result);
        exit(5);
    }
}

#define CUDA(name, ...) ((int (*)(__VA_ARGS__))find(cuda, #name))
#define NVML(name, ...) ((int (*)(__VA_ARGS__))find(nvml, #name))

static int device(char *text, size_t room, int index)
{
    unsigned char uuid[16];
    char hex[48] = "GPU-", other[96] = "";
    size_t total = 0, left = 0, info = 0;
    unsigned long long half = 0, over = 0;
    struct nvml_memory memory = {0};
    void *context = NULL, *handle = NULL;
    need("cuDeviceGetUuid_v2", CUDA(cuDeviceGetUuid_v2, void *, int)(uuid, index));
    for (int k = 0, at = 4; k < 16; k++)
        at += snprintf(hex + at, sizeof(hex) - (size_t)at, "%02x%s", uuid[k],
                       k == 3 || k == 5 || k == 7 || k == 9 ? "-" : "");
    need("cuDeviceTotalMem_v2", CUDA(cuDeviceTotalMem_v2, size_t *, int)(&total, index));
    need("cuDevicePrimaryCtxRetain", CUDA(cuDevicePrimaryCtxRetain, void **, int)(&context, index));
    need("cuCtxSetCurrent", CUDA(cuCtxSetCurrent, void *)(context));
    need("cuMemGetInfo_v2", CUDA(cuMemGetInfo_v2, size_t *, size_t *)(&left, &info));
    int small = CUDA(cuMemAlloc_v2, unsigned long long *, size_t)(&half, left / 2);
    int large = CUDA(cuMemAlloc_v2, unsigned long long *, size_t)(&over, total + (2u << 20));
    need("nvmlDeviceGetHandleByIndex_v2",
         NVML(nvmlDeviceGetHandleByIndex_v2, unsigned int, void **)((unsigned int)index, &handle));
    need("nvmlDeviceGetUUID", NVML(nvmlDeviceGetUUID, void *, char *, unsigned int)(handle, other, sizeof(other)));
    need("nvmlDeviceGetMemoryInfo", NVML(nvmlDeviceGetMemoryInfo, void *, struct nvml_memory *)(handle, &memory));
    return snprintf(text, room,
                    "%s{\"cuda\":\"%s\",\"nvml\":\"%s\",\"totals\":[%zu,%zu,%llu],\"half\":%d,\"over\":%d}",
                    index > 0 ? "," : "", hex, other, total, info, memory.total, small, large);
}

int main(int argc, char **argv)
{
    const char *file = argc > 2 ? argv[2] : "-";
    int count = 0;
    unsigned int listed = 0;
    char line[LINE_MAX_BYTES];
    if (argc < 2) return 2;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (cuda == NULL || nvml == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    need("cuInit", CUDA(cuInit, unsigned int)(0));
    need("nvmlInit_v2", NVML(nvmlInit_v2, void)());
    need("cuDeviceGetCount", CUDA(cuDeviceGetCount, int *)(&count));
    need("nvmlDeviceGetCount_v2", NVML(nvmlDeviceGetCount_v2, unsigned int *)(&listed));
    int at = snprintf(line, sizeof(line), "{\"label\":\"%s\",\"listed\":%u,\"devices\":[", argv[1], listed);
    for (int i = 0; i < count && i < DEVICES_MAX; i++)
        at += device(line + at, sizeof(line) - (size_t)at, i);
    at += snprintf(line + at, sizeof(line) - (size_t)at, "]}\n");
    int out = strcmp(file, "-") == 0 ? 1 : open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (out < 0 || write(out, line, (size_t)at) != at) return 6; /* one write: lines of several programs never mix */
    if (argc > 3) {
        char byte;
        while (read(0, &byte, 1) > 0)
            ;
    }
    return 0;
}
