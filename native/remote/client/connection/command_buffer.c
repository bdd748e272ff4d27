#include "remote/client/connection/command_buffer.h"

struct line cb_command_buffer = {.lock = PTHREAD_MUTEX_INITIALIZER};
struct cb_counters cb_counters;

bool cb_command_buffer_flush(void)
{
    if (cb_command_buffer.gone) return false;
    if (!cb_command_buffer.filled) return true;
    struct iovec part = {cb_command_buffer.bytes, cb_command_buffer.filled};
    cb_counters.sent_bytes += cb_command_buffer.filled;
    cb_command_buffer.filled = 0;
    cb_command_buffer.gone = !cb_transport_send(&cb_command_buffer.link, &part, 1);
    return !cb_command_buffer.gone;
}
