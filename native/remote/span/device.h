/* The devices of a span: those of its sessions in order, or what CUDA_VISIBLE_DEVICES chooses of them. */
#ifndef CALABASH_REMOTE_SPAN_DEVICE_H
#define CALABASH_REMOTE_SPAN_DEVICE_H

#include "remote/span/route.h"

struct span_device {
    struct span_session *session;
    CUdevice local;
};

/* INVALID_DEVICE: there is none of that number. */
CUresult span_device(CUdevice dev, struct span_device *out);
/* A device of a session, as the program knows it; as it is where the program does not. */
CUdevice span_device_here(const struct span_session *s, CUdevice local);
/* The session of a place, or NULL when it is no device; and its number there. */
struct span_session *span_of_location(const CUmemLocation *l);
/* The place as that session knows it. INVALID_DEVICE: it is none of its own. */
CUresult span_location(const struct span_session *s, CUmemLocation *l);
/* Back: as the program knows it. */
void span_location_here(const struct span_session *s, CUmemLocation *l);

#endif
