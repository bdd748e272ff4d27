#include "remote/span_nvml/nvml.h"

#include <dlfcn.h>

#define LIBRARY      "libnvidia-ml-session.so"
#define PLACE        "/proc/self/task/../fd/"
#define NAME(symbol) #symbol,

unsigned int span_nvml_users;
static pthread_mutex_t nvml_lock = PTHREAD_MUTEX_INITIALIZER;
static const char *const names[CB_NVML_COUNT] = {CB_NVML_API(NAME)};
static void *functions[CB_SPAN_MAX][CB_NVML_COUNT];
static unsigned int devices[CB_SPAN_MAX]; /* number of devices of each session */

void *span_nvml_function(const struct span_session *s, int function)
{
    return functions[s->member - 1][function];
}

const struct span_session *span_nvml_first(void)
{
    return span_nvml_users ? &span_sessions[0] : NULL;
}

const struct span_session *span_nvml_of(nvmlDevice_t device)
{
    uint64_t member = (uintptr_t)device >> 32;
    return span_nvml_users && member && member <= span_count ? &span_sessions[member - 1] : NULL;
}

nvmlDevice_t span_nvml_inner(nvmlDevice_t device)
{
    return (nvmlDevice_t)((uintptr_t)device & UINT32_MAX);
}

nvmlDevice_t span_nvml_outer(const struct span_session *s, nvmlDevice_t device)
{
    return device ? (nvmlDevice_t)((uintptr_t)s->member << 32 | (uintptr_t)device) : NULL;
}

unsigned int span_nvml_devices(const struct span_session *s)
{
    return devices[s->member - 1];
}

/* ---- begin and end ---- */

static nvmlReturn_t session_begin(const struct span_session *s, unsigned int flags)
{
    for (int f = 0; f < CB_NVML_COUNT; f++) {
        functions[s->member - 1][f] = dlsym(s->library, names[f]);
        if (!functions[s->member - 1][f]) return NVML_ERROR_FUNCTION_NOT_FOUND;
    }
    nvmlReturn_t result = SPAN_NVML(s, nvmlInitWithFlags)(flags);
    if (result != NVML_SUCCESS) return result;
    result = SPAN_NVML(s, nvmlDeviceGetCount_v2)(&devices[s->member - 1]);
    if (result != NVML_SUCCESS) SPAN_NVML(s, nvmlShutdown)();
    return result;
}

static nvmlReturn_t sessions_begin(unsigned int flags)
{
    nvmlReturn_t result = NVML_SUCCESS;
    unsigned int begun = 0;
    while (begun < span_count && (result = session_begin(&span_sessions[begun], flags)) == NVML_SUCCESS)
        begun++;
    for (; result != NVML_SUCCESS && begun; begun--)
        SPAN_NVML(&span_sessions[begun - 1], nvmlShutdown)();
    return result;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    if (!span_load(LIBRARY, PLACE)) return NVML_ERROR_DRIVER_NOT_LOADED;
    pthread_mutex_lock(&nvml_lock);
    nvmlReturn_t result = sessions_begin(flags);
    span_nvml_users += result == NVML_SUCCESS;
    pthread_mutex_unlock(&nvml_lock);
    return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&nvml_lock);
    bool was = span_nvml_users != 0;
    for (unsigned int i = 0; was && i < span_count; i++)
        SPAN_NVML(&span_sessions[i], nvmlShutdown)();
    span_nvml_users -= was;
    pthread_mutex_unlock(&nvml_lock);
    return was ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}
