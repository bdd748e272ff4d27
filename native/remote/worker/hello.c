/* Handler of the first command: the protocol version, and a description of all devices. */
#include "remote/wire/device.h"
#include "remote/worker/address_reservation.h"
#include "remote/worker/environment.h"
#include "remote/worker/generated.h"

#include <stdio.h>

static CUresult device_describe(struct cb_request *q, CUdevice device, int devices)
{
    static struct cb_device d;
    memset(&d, 0, sizeof d);
    size_t bytes = 0;
    CUresult result = CB_CALL(cuDeviceGetName)(d.name, (int)sizeof d.name, device);
    if (result == CUDA_SUCCESS) result = CB_CALL(cuDeviceTotalMem_v2)(&bytes, device);
    if (result != CUDA_SUCCESS) return result;
    d.memory_bytes = bytes;
    CB_CALL(cuDeviceGetUuid)(&d.uuid[0], device);
    CB_CALL(cuDeviceGetUuid_v2)(&d.uuid[1], device);
    CB_CALL(cuDeviceGetPCIBusId)(d.pci, (int)sizeof d.pci, device);
    CB_CALL(cuDeviceGetProperties)(&d.properties, device);
    for (int a = 0; a < CB_ATTRIBUTES_MAX; a++)
        d.attribute[a].result =
            CB_CALL(cuDeviceGetAttribute)(&d.attribute[a].value, (CUdevice_attribute)a, device);
    for (int other = 0; other < devices; other++) {
        struct cb_attribute *peer = d.peer[other];
        peer[0].result = CB_CALL(cuDeviceCanAccessPeer)(&peer[0].value, device, other);
        for (int a = 1; a < 8; a++)
            peer[a].result =
                CB_CALL(cuDeviceGetP2PAttribute)(&peer[a].value, (CUdevice_P2PAttribute)a, device, other);
    }
    d.luid.result = CB_CALL(cuDeviceGetLuid)(d.luid_bytes, &d.luid_mask, device);
    cb_give_bytes(q, d.name, sizeof d.name);
    cb_give_bytes(q, d.uuid, sizeof d.uuid);
    cb_give_word(q, d.memory_bytes);
    cb_give_bytes(q, d.pci, sizeof d.pci);
    cb_give_bytes(q, &d.properties, sizeof d.properties);
    cb_give_bytes(q, d.attribute, sizeof d.attribute);
    cb_give_bytes(q, d.peer, sizeof d.peer[0] * (size_t)devices);
    cb_give_bytes(q, &d.luid, sizeof d.luid);
    cb_give_bytes(q, d.luid_bytes, sizeof d.luid_bytes);
    cb_give_word(q, d.luid_mask);
    return CUDA_SUCCESS;
}

CUresult cb_on_HELLO(struct cb_request *q)
{
    uint64_t magic = cb_take_word(q), version = cb_take_word(q), sum = cb_take_word(q);
    int driver = 0, devices = 0;
    if (q->bad || magic != CB_WIRE_MAGIC) return CB_MALFORMED;
    if (version != CB_WIRE_VERSION || sum != CB_OPS_SUM) {
        cb_give_word(q, CB_WIRE_VERSION);
        cb_give_word(q, CB_OPS_SUM);
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    }
    cb_take_environment(q);
    uint64_t purpose = cb_take_word(q), member = cb_take_word(q);
    if (!cb_taken(q) || member > CB_SPAN_MAX) return CB_MALFORMED;
    if (cb_span_member && member != cb_span_member) return CB_MALFORMED;
    if (member != cb_span_member && purpose == CB_FOR_CUDA) cb_span_reserve_addresses((uint8_t)member);
    cb_span_member = (uint8_t)member;
    CUresult result = purpose == CB_FOR_CUDA ? CB_CALL(cuInit)(0) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && purpose == CB_FOR_CUDA) result = CB_CALL(cuDriverGetVersion)(&driver);
    if (result == CUDA_SUCCESS && purpose == CB_FOR_CUDA) result = CB_CALL(cuDeviceGetCount)(&devices);
    if (devices > CB_DEVICES_MAX) devices = CB_DEVICES_MAX;
    cb_give_word(q, (uint64_t)driver);
    cb_give_word(q, (uint64_t)devices);
    for (int i = 0; i < devices && result == CUDA_SUCCESS; i++)
        result = device_describe(q, i, devices);
    return result;
}
