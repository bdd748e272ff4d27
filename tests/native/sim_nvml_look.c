/*
 * Prints what NVML alone shows of a node: for every card its UUID and its used memory in MiB. The library is
 * looked up by its name, as monitoring tools do; without it the program ends with 2.
 */
#include <dlfcn.h>
#include <stdio.h>

typedef struct {
    unsigned long long total, free, used;
} memory_info;

#define LOAD(name) __typeof__(name) *name##_ = (__typeof__(name) *)dlsym(library, #name)

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetUUID(void *, char *, unsigned);
int nvmlDeviceGetMemoryInfo(void *, memory_info *);

int main(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return 2;
    LOAD(nvmlInit_v2);
    LOAD(nvmlDeviceGetCount_v2);
    LOAD(nvmlDeviceGetHandleByIndex_v2);
    LOAD(nvmlDeviceGetUUID);
    LOAD(nvmlDeviceGetMemoryInfo);
    if (!nvmlInit_v2_ || !nvmlDeviceGetCount_v2_ || !nvmlDeviceGetHandleByIndex_v2_ || !nvmlDeviceGetUUID_ ||
        !nvmlDeviceGetMemoryInfo_)
        return 2;

    unsigned count = 0;
    int status = nvmlInit_v2_();
    if (status == 0) status = nvmlDeviceGetCount_v2_(&count);
    for (unsigned i = 0; status == 0 && i < count; i++) {
        void *card = NULL;
        char uuid[96] = "";
        memory_info memory = {0};
        status = nvmlDeviceGetHandleByIndex_v2_(i, &card);
        if (status == 0) status = nvmlDeviceGetUUID_(card, uuid, sizeof uuid);
        if (status == 0) status = nvmlDeviceGetMemoryInfo_(card, &memory);
        if (status == 0) printf("%s %llu\n", uuid, memory.used >> 20);
    }
    return status;
}
