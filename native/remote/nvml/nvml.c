#include "remote/nvml/nvml.h"

#include "remote/client/connection/command_buffer.h"
#include "remote/client/connection/session.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;

/* A child has no connection of its own yet, but NVML holds in it: another one is made. */
static bool connected(void)
{
    if (cb_line.state == CB_OPEN) return true;
    if (cb_line.state == CB_FORKED) {
        cb_line.filled = 0;
        cb_line.gone = false;
        cb_line.state = CB_CLOSED;
    }
    cb_session_purpose = CB_FOR_NVML;
    return cb_session_open();
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags; /* what they ask for is so here: no card must be there, none is attached to */
    pthread_mutex_lock(&lock);
    bool ok = connected();
    users += ok;
    pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
    bool was = users != 0;
    users -= was;
    pthread_mutex_unlock(&lock);
    return was ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t cb_nvml_begin(struct cb_call *c, int function)
{
    pthread_mutex_lock(&lock);
    bool ready = users != 0, ok = ready && connected();
    pthread_mutex_unlock(&lock);
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

void cb_nvml_text(struct cb_call *c, char *into, unsigned int room)
{
    const char *text = cb_take_string(c);
    size_t length = text ? strlen(text) : 0;
    if (!room) return;
    if (length >= room) length = room - 1;
    if (text) memcpy(into, text, length);
    into[length] = 0;
}

uint64_t cb_nvml_taken(struct cb_call *c, uint64_t room)
{
    uint64_t count = cb_take_word(c);
    return count < room ? count : room;
}
