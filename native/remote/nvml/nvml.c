#include "remote/nvml/nvml.h"

#include "remote/client/connection/command_buffer.h"
#include "remote/client/connection/session.h"

static pthread_mutex_t nvml_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int nvml_users;

/* A forked child has no connection of its own yet, but NVML is valid in it: connect again. */
static bool nvml_connect(void)
{
    if (cb_command_buffer.state == CB_OPEN) return true;
    if (cb_command_buffer.state == CB_FORKED) {
        cb_command_buffer.filled = 0;
        cb_command_buffer.gone = false;
        cb_command_buffer.state = CB_CLOSED;
    }
    cb_session_purpose = CB_FOR_NVML;
    return cb_session_open();
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags; /* all flags are satisfied: no card must be present, none is attached to */
    pthread_mutex_lock(&nvml_lock);
    bool ok = nvml_connect();
    nvml_users += ok;
    pthread_mutex_unlock(&nvml_lock);
    return ok ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
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
    bool was = nvml_users != 0;
    nvml_users -= was;
    pthread_mutex_unlock(&nvml_lock);
    return was ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t cb_nvml_begin(struct cb_call *c, int function)
{
    pthread_mutex_lock(&nvml_lock);
    bool ready = nvml_users != 0, ok = ready && nvml_connect();
    pthread_mutex_unlock(&nvml_lock);
    if (!ready) return NVML_ERROR_UNINITIALIZED;
    if (!ok || cb_call_begin(c, CB_OP_NVML, CB_ANYWHERE) != CUDA_SUCCESS) return NVML_ERROR_GPU_IS_LOST;
    cb_put_word(c, (uint64_t)function);
    return NVML_SUCCESS;
}

nvmlReturn_t cb_nvml_ask(struct cb_call *c)
{
    CUresult result = cb_call_ask(c);
    if (result == CUDA_SUCCESS) return (nvmlReturn_t)cb_take_word(c);
    return result == CUDA_ERROR_INVALID_VALUE ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_GPU_IS_LOST;
}

void cb_nvml_text(struct cb_call *c, char *into, unsigned int capacity)
{
    const char *text = cb_take_string(c);
    size_t length = text ? strlen(text) : 0;
    if (!capacity) return;
    if (length >= capacity) length = capacity - 1;
    if (text) memcpy(into, text, length);
    into[length] = 0;
}

uint64_t cb_nvml_taken(struct cb_call *c, uint64_t capacity)
{
    uint64_t count = cb_take_word(c);
    return count < capacity ? count : capacity;
}
