/* Description of the worker's devices, sent when the session began. */
#ifndef CALABASH_REMOTE_CLIENT_DEVICE_DEVICE_SNAPSHOT_H
#define CALABASH_REMOTE_CLIENT_DEVICE_DEVICE_SNAPSHOT_H

#include "remote/client/connection/call.h"
#include "remote/wire/device.h"

struct cb_snapshot {
    int driver_version;
    int devices;
    struct cb_device device[CB_DEVICES_MAX];
};
extern struct cb_snapshot cb_snapshot;

bool cb_snapshot_take(struct cb_call *c);
/* NULL: there is no such device. */
const struct cb_device *cb_device_of(CUdevice dev);

#endif
