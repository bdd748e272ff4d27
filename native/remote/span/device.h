/* The devices of a span: those of its sessions in order, or what CUDA_VISIBLE_DEVICES selects from them. */
#ifndef CALABASH_REMOTE_SPAN_DEVICE_H
#define CALABASH_REMOTE_SPAN_DEVICE_H

#include "remote/span/route.h"

struct span_device {
    struct span_session *session;
    CUdevice local;
};

/* INVALID_DEVICE: no device has that number. */
CUresult span_device(CUdevice dev, struct span_device *out);
/* Program-wide number of a session's device; unchanged if the program does not see it. */
CUdevice span_device_here(const struct span_session *s, CUdevice local);
/* The session of a location, or NULL if it is not a device; and the device's number there. */
struct span_session *span_of_location(const CUmemLocation *l);
/* Convert a location to the session's numbers. INVALID_DEVICE: it belongs to another session. */
CUresult span_location(const struct span_session *s, CUmemLocation *l);
/* Convert it back to the program's numbers. */
void span_location_here(const struct span_session *s, CUmemLocation *l);

#endif
