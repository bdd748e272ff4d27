/* Device attributes that do not hold for a remote program. */
#ifndef CALABASH_REMOTE_CLIENT_DEVICE_REMOTE_ATTRIBUTES_H
#define CALABASH_REMOTE_CLIENT_DEVICE_REMOTE_ATTRIBUTES_H

#include "remote/wire/device.h"

/* Clear the attributes of features that need this process's memory or descriptors at the card. */
void cb_remote_attributes_mask(struct cb_device *d);

#endif
