#include "remote/worker/nvml.h"

#include "remote/worker/generated.h"

#include <dlfcn.h>

void *cb_nvml_library[CB_NVML_COUNT];

static nvmlReturn_t nvml_function_absent(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static nvmlReturn_t nvml_open(void)
{
    static bool tried;
    static nvmlReturn_t result = NVML_ERROR_LIBRARY_NOT_FOUND;
    if (tried) return result;
    tried = true;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    for (int i = 0; i < CB_NVML_COUNT; i++) {
        void *found = library ? dlsym(library, cb_nvml_names[i]) : NULL;
        cb_nvml_library[i] = found ? found : (void *)nvml_function_absent;
    }
    if (library) result = CB_NVML_CALL(nvmlInit_v2)();
    return result;
}

CUresult cb_on_NVML(struct cb_request *q)
{
    uint64_t function = cb_take_word(q);
    if (q->bad || function >= CB_NVML_COUNT || !cb_nvml_handlers[function]) return CB_MALFORMED;
    nvmlReturn_t result = nvml_open();
    if (result == NVML_SUCCESS) return cb_nvml_handlers[function](q);
    q->at = q->end;
    cb_give_word(q, (uint64_t)result);
    return CUDA_SUCCESS;
}

nvmlDevice_t cb_nvml_device(struct cb_request *q)
{
    nvmlDevice_t device = NULL;
    uint64_t number = cb_take_word(q);
    if (!number || number > UINT32_MAX) return NULL;
    if (CB_NVML_CALL(nvmlDeviceGetHandleByIndex_v2)((unsigned int)number - 1, &device) != NVML_SUCCESS)
        return NULL;
    return device;
}

uint64_t cb_nvml_number(nvmlDevice_t device)
{
    unsigned int index = 0;
    if (!device || CB_NVML_CALL(nvmlDeviceGetIndex)(device, &index) != NVML_SUCCESS) return 0;
    return (uint64_t)index + 1;
}

void *cb_nvml_array(struct cb_request *q, uint64_t count, size_t bytes)
{
    if (count > CB_NVML_ARRAY_MAX) q->bad = true;
    return q->bad || !count ? NULL : calloc(count, bytes);
}

uint64_t cb_nvml_given(struct cb_request *q, uint64_t count, uint64_t capacity)
{
    if (count > capacity) count = capacity;
    cb_give_word(q, count);
    return count;
}
