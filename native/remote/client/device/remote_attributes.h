/* What a card can do that this process has not. */
#ifndef CALABASH_REMOTE_CLIENT_DEVICE_REMOTE_ATTRIBUTES_H
#define CALABASH_REMOTE_CLIENT_DEVICE_REMOTE_ATTRIBUTES_H

#include "remote/wire/device.h"

/* Attributes of what needs this process's memory or descriptors at the card say no. */
void cb_truth(struct cb_device *d);

#endif
