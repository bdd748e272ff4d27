#include "remote/worker/channel.h"

static struct cb_stream channel;

struct cb_stream *cb_channel_use(struct cb_stream stream)
{
    channel = stream;
    return &channel;
}

bool cb_channel_send(const void *data, size_t bytes)
{
    struct iovec part = {(void *)data, bytes};
    return channel.kind->send(&channel, &part, 1);
}

bool cb_channel_send_parts(struct iovec *parts, int count)
{
    return channel.kind->send(&channel, parts, count);
}

size_t cb_channel_receive(void *into, size_t capacity)
{
    bool gone = false;
    return channel.kind->receive(&channel, into, capacity, true, &gone);
}
