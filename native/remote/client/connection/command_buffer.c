#include "remote/client/connection/command_buffer.h"

struct line cb_line = {.lock = PTHREAD_MUTEX_INITIALIZER};
struct cb_counters cb_counters;

bool cb_line_flush(void)
{
    if (cb_line.gone) return false;
    if (!cb_line.filled) return true;
    struct iovec part = {cb_line.bytes, cb_line.filled};
    cb_counters.sent_bytes += cb_line.filled;
    cb_line.filled = 0;
    cb_line.gone = !cb_link_send(&cb_line.link, &part, 1);
    return !cb_line.gone;
}
