/* Description of a device, sent when a session begins. */
#ifndef CALABASH_REMOTE_DEVICE_H
#define CALABASH_REMOTE_DEVICE_H

#include "api/cuda_api.h"

#define CB_DEVICES_MAX    64
#define CB_ATTRIBUTES_MAX 256
#define CB_NAME_BYTES     256

struct cb_attribute {
    int value;
    CUresult result;
};

struct cb_device {
    char name[CB_NAME_BYTES];
    CUuuid uuid[2]; /* cuDeviceGetUuid, cuDeviceGetUuid_v2 */
    uint64_t memory_bytes;
    char pci[32];
    CUdevprop properties;
    struct cb_attribute attribute[CB_ATTRIBUTES_MAX];
    struct cb_attribute peer[CB_DEVICES_MAX][8]; /* by the other device: CUdevice_P2PAttribute; 0 is access */
    struct cb_attribute luid;
    char luid_bytes[8];
    unsigned int luid_mask;
};

#endif
