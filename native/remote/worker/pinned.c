#include "remote/worker/pinned.h"

#include <sys/mman.h>

static unsigned int contexts_ended;

/* Works also during a capture, without becoming part of it. */
static CUresult pages_lock(struct cb_pinned *p)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult exchanged = CB_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
    p->age = __atomic_load_n(&contexts_ended, __ATOMIC_ACQUIRE);
    CUresult result = CB_CALL(cuMemHostRegister_v2)(p->data, p->bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (exchanged == CUDA_SUCCESS) CB_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
    return result;
}

bool cb_pinned_make(struct cb_pinned *p, size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return false;
    struct cb_pinned made = {.data = pages, .bytes = bytes};
    if (pages_lock(&made) != CUDA_SUCCESS) {
        munmap(pages, bytes);
        return false;
    }
    *p = made;
    return true;
}

void cb_pinned_renew(struct cb_pinned *p)
{
    if (p->age != __atomic_load_n(&contexts_ended, __ATOMIC_ACQUIRE))
        pages_lock(p); /* usually it still is locked */
}

void cb_pinned_end(struct cb_pinned *p)
{
    struct cb_pinned was = *p; /* the struct itself may lie in these pages */
    CB_CALL(cuMemHostUnregister)(was.data);
    munmap(was.data, was.bytes);
}

void cb_pinned_context_ends(void)
{
    __atomic_fetch_add(&contexts_ended, 1, __ATOMIC_RELEASE);
}
