#include "remote/client/device/device_snapshot.h"

#include "remote/client/device/remote_attributes.h"

struct cb_snapshot cb_snapshot;

bool cb_snapshot_take(struct cb_call *c)
{
    struct cb_snapshot *s = &cb_snapshot;
    s->driver_version = (int)cb_take_word(c);
    uint64_t devices = cb_take_word(c);
    if (devices > CB_DEVICES_MAX) return false;
    s->devices = (int)devices;
    for (int i = 0; i < s->devices; i++) {
        struct cb_device *d = &s->device[i];
        cb_take_bytes(c, d->name, sizeof d->name);
        cb_take_bytes(c, d->uuid, sizeof d->uuid);
        d->memory_bytes = cb_take_word(c);
        cb_take_bytes(c, d->pci, sizeof d->pci);
        cb_take_bytes(c, &d->properties, sizeof d->properties);
        cb_take_bytes(c, d->attribute, sizeof d->attribute);
        cb_take_bytes(c, d->peer, sizeof d->peer[0] * devices);
        cb_take_bytes(c, &d->luid, sizeof d->luid);
        cb_take_bytes(c, d->luid_bytes, sizeof d->luid_bytes);
        d->luid_mask = (unsigned int)cb_take_word(c);
        cb_remote_attributes_mask(d);
        d->name[sizeof d->name - 1] = d->pci[sizeof d->pci - 1] = 0;
    }
    return cb_took_all(c);
}

const struct cb_device *cb_device_of(CUdevice dev)
{
    return dev >= 0 && dev < cb_snapshot.devices ? &cb_snapshot.device[dev] : NULL;
}
