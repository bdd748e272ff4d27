/*
 * Mapping of driver ordinals to the slot's devices.
 *
 * The pool sets CUDA_VISIBLE_DEVICES; a program may set it again, and then means devices as it sees them:
 * indices count within the visible devices of the slot. Before the driver reads the list it is rewritten to
 * UUIDs of the slot, so that a script's usual CUDA_VISIBLE_DEVICES=0 is the first device of the slice and not
 * the first card of the machine. An ordinal that still is not in the slice gets no context (context.c).
 */
#define _GNU_SOURCE
#include "shim/device.h"

#include "shim/real.h"
#include "shim/visible_devices.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_BYTES ((size_t)CB_DEVICES_MAX * 48 + 1)

/* Copy and terminate: the page is written by another process. */
static void copy_uuid(char *to, const char *from)
{
    memcpy(to, from, 47);
    to[47] = 0;
}

static int device_of_token(const char *token)
{
    char uuid[48], *end = NULL;
    long index = strtol(token, &end, 10);
    if (end != token && *end == 0)
        return index >= 0 && index < CB_DEVICES_MAX ? cb_shown_device((uint32_t)index) : -1;
    if (strncmp(token, "GPU-", 4) != 0 && strncmp(token, "MIG-", 4) != 0) return -1;
    int found = -1;
    for (uint32_t i = 0; i < cb.device_count; i++) {
        if (!cb_is_shown(i)) continue;
        copy_uuid(uuid, cb.limits->device[i].uuid);
        if (strncasecmp(uuid, token, strlen(token)) == 0) {
            if (found >= 0) return -1; /* an ambiguous prefix matches nothing, as with the driver */
            found = (int)i;
        }
    }
    return found;
}

void cb_devices_narrow(void)
{
    char list[LIST_BYTES] = "", wanted[1024], uuid[48], *position = NULL;
    const char *set = getenv("CUDA_VISIBLE_DEVICES");
    uint32_t chosen[CB_DEVICES_MAX], count = 0;
    if (set == NULL) {
        for (uint32_t i = 0; i < cb.device_count; i++)
            if (cb_is_shown(i)) chosen[count++] = i;
    } else {
        strncpy(wanted, set, sizeof(wanted) - 1);
        wanted[sizeof(wanted) - 1] = 0;
        for (char *token = strtok_r(wanted, ", ", &position); token != NULL && count < CB_DEVICES_MAX;
             token = strtok_r(NULL, ", ", &position)) {
            int device = device_of_token(token);
            if (device < 0) break; /* the first unknown entry ends the list, as with the driver */
            chosen[count++] = (uint32_t)device;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        copy_uuid(uuid, cb.limits->device[chosen[i]].uuid);
        if (i > 0) strcat(list, ",");
        strcat(list, uuid);
    }
    if (set == NULL || strcmp(set, list) != 0) setenv("CUDA_VISIBLE_DEVICES", list, 1);
}

static void uuid_text(const CUuuid *uuid, char text[48])
{
    const unsigned char *b = (const unsigned char *)uuid->bytes;
    snprintf(text, 48, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

void cb_devices_learn(void)
{
    int count = 0;
    char text[48], uuid[48];
    if (CB_REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) return;
    if (count > CB_ORDINALS_MAX) count = CB_ORDINALS_MAX;
    for (int ordinal = 0; ordinal < count; ordinal++) {
        CUuuid bytes;
        int8_t found = -1;
        CUresult (*get)(CUuuid *, CUdevice) =
            CB_REAL(cuDeviceGetUuid_v2) != NULL ? CB_REAL(cuDeviceGetUuid_v2) : CB_REAL(cuDeviceGetUuid);
        if (get != NULL && get(&bytes, ordinal) == CUDA_SUCCESS) {
            uuid_text(&bytes, text);
            for (uint32_t i = 0; i < cb.device_count; i++) {
                copy_uuid(uuid, cb.limits->device[i].uuid);
                const char *dash = strchr(uuid, '-');
                if (dash != NULL && strcasecmp(dash + 1, text) == 0) found = (int8_t)i;
            }
        }
        cb.device_of_ordinal[ordinal] = found;
    }
    __atomic_store_n(&cb.ordinal_count, count, __ATOMIC_RELEASE);
}
