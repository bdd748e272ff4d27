#include "remote/span/device.h"

#include "remote/wire/device.h"
#include "remote/wire/environment.h"

#include <ctype.h>
#include <stdio.h>
#include <strings.h>

#define LIBRARY     "libcuda-session.so"
#define PLACE       "/proc/self/fd/"
#define UUID_DIGITS 36

static struct span_device devices[CB_SPAN_MAX * CB_DEVICES_MAX];
static int device_count;

CUresult span_device(CUdevice dev, struct span_device *out)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (dev < 0 || dev >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    *out = devices[dev];
    return CUDA_SUCCESS;
}

CUdevice span_device_here(const struct span_session *s, CUdevice local)
{
    for (int i = 0; i < device_count; i++) {
        if (devices[i].session == s && devices[i].local == local) return i;
    }
    return local;
}

struct span_session *span_of_location(const CUmemLocation *l)
{
    struct span_device d;
    bool is_device = l && l->type == CU_MEM_LOCATION_TYPE_DEVICE;
    return is_device && span_device(l->id, &d) == CUDA_SUCCESS ? d.session : NULL;
}

CUresult span_location(const struct span_session *s, CUmemLocation *l)
{
    struct span_device d;
    if (l->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_SUCCESS;
    CB_OK(span_device(l->id, &d));
    if (d.session != s) return CUDA_ERROR_INVALID_DEVICE;
    l->id = d.local;
    return CUDA_SUCCESS;
}

void span_location_here(const struct span_session *s, CUmemLocation *l)
{
    if (l->type == CU_MEM_LOCATION_TYPE_DEVICE) l->id = span_device_here(s, l->id);
}

/* ---- enumeration ---- */

static void uuid_text(const CUuuid *id, char *text)
{
    const unsigned char *b = (const unsigned char *)id->bytes;
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
}

/* Index of the device that a word of CUDA_VISIBLE_DEVICES refers to; -1: none, or more than one. */
static int device_of_word(const char *word, const struct span_device *all, int there)
{
    int found = -1;
    if (isdigit((unsigned char)*word)) {
        unsigned long i = strtoul(word, NULL, 10);
        return i < (unsigned long)there ? (int)i : -1;
    }
    for (int i = 0; i < there && *word; i++) {
        char text[UUID_DIGITS + 8];
        CUuuid id = {{0}};
        if (SPAN_CALL(all[i].session, cuDeviceGetUuid_v2)(&id, all[i].local) != CUDA_SUCCESS) continue;
        uuid_text(&id, text);
        if (strncasecmp(word, text, strlen(word)) != 0) continue;
        if (found >= 0) return -1;
        found = i;
    }
    return found;
}

/* As with any driver: the first word that is invalid, or repeated, ends the list. */
static void visible_devices_choose(char *text, const struct span_device *all, int there)
{
    char *position = NULL;
    for (char *word = strtok_r(text, ", ", &position); word; word = strtok_r(NULL, ", ", &position)) {
        int i = device_of_word(word, all, there);
        if (i < 0) return;
        for (int k = 0; k < device_count; k++) {
            if (devices[k].session == all[i].session && devices[k].local == all[i].local) return;
        }
        devices[device_count++] = all[i];
    }
}

static CUresult devices_collect(void)
{
    static struct span_device all[CB_SPAN_MAX * CB_DEVICES_MAX];
    int there = 0;
    const char *visible = getenv(CB_VISIBLE_DEVICES);
    for (unsigned int i = 0; i < span_count; i++) {
        int own = 0;
        CB_OK(SPAN_CALL(&span_sessions[i], cuInit)(0));
        CB_OK(SPAN_CALL(&span_sessions[i], cuDeviceGetCount)(&own));
        for (CUdevice d = 0; d < own; d++)
            all[there++] = (struct span_device){&span_sessions[i], d};
    }
    device_count = 0;
    char *text = visible ? strdup(visible) : NULL;
    if (text) visible_devices_choose(text, all, there);
    free(text);
    for (; !visible && device_count < there; device_count++)
        devices[device_count] = all[device_count];
    return device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static bool forked;

static void device_after_fork(void)
{
    forked = forked || span_ready; /* as with any driver: a forked child has no devices */
    span_ready = false;
}

static CUresult span_begin(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool prepared;
    if (forked) return CUDA_ERROR_NOT_INITIALIZED;
    if (!span_load(LIBRARY, PLACE)) return CUDA_ERROR_NO_DEVICE;
    pthread_mutex_lock(&lock);
    CUresult result = span_ready ? CUDA_SUCCESS : devices_collect();
    prepared = prepared || pthread_atfork(NULL, NULL, device_after_fork) == 0;
    span_ready = result == CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuInit(unsigned int flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : span_begin();
}

/* The lowest version: a function that it lacks is not available on all devices. */
EXPORT CUresult cuDriverGetVersion(int *driverVersion)
{
    if (!driverVersion) return CUDA_ERROR_INVALID_VALUE;
    if (!span_load(LIBRARY, PLACE)) return CUDA_ERROR_NO_DEVICE;
    for (unsigned int i = 0; i < span_count; i++) {
        int version = 0;
        CB_OK(SPAN_CALL(&span_sessions[i], cuDriverGetVersion)(&version));
        if (i == 0 || version < *driverVersion) *driverVersion = version;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *number)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!number) return CUDA_ERROR_INVALID_VALUE;
    *number = device_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    struct span_device d;
    CB_OK(span_device(ordinal, &d));
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

/* Cards of two servers may have the same ID; the first is returned. */
EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!dev || !pciBusId) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < device_count; i++) {
        CUdevice local;
        CUresult result = SPAN_CALL(devices[i].session, cuDeviceGetByPCIBusId)(&local, pciBusId);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_DEVICE) return result;
        if (result != CUDA_SUCCESS || local != devices[i].local) continue;
        *dev = i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

/* ---- between two devices ---- */

EXPORT CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    struct span_device a, b;
    CB_OK(span_device(dev, &a));
    CB_OK(span_device(peerDev, &b));
    if (!canAccessPeer) return CUDA_ERROR_INVALID_VALUE;
    if (a.session == b.session)
        return SPAN_CALL(a.session, cuDeviceCanAccessPeer)(canAccessPeer, a.local, b.local);
    *canAccessPeer = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                        CUdevice dstDevice)
{
    struct span_device a, b;
    CB_OK(span_device(srcDevice, &a));
    CB_OK(span_device(dstDevice, &b));
    if (a.session == b.session)
        return SPAN_CALL(a.session, cuDeviceGetP2PAttribute)(value, attrib, a.local, b.local);
    if (!value || (int)attrib < 1 || (int)attrib > 7) return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    struct span_visit v;
    struct span_session *other = span_of_handle((uintptr_t)peerContext);
    CB_OK(span_enter(&v, NULL, 0));
    if (!other || other == v.session) return SPAN_CALL(v.session, cuCtxEnablePeerAccess)(peerContext, Flags);
    return Flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    struct span_visit v;
    struct span_session *other = span_of_handle((uintptr_t)peerContext);
    CB_OK(span_enter(&v, NULL, 0));
    if (!other || other == v.session) return SPAN_CALL(v.session, cuCtxDisablePeerAccess)(peerContext);
    return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
