#include "simgpu/cuda_internal.h"
bool capture_work(struct stream *s, enum node_kind kind, const struct work *w, const void *params, size_t bytes,
                  CUresult *result)
{
    (void)s, (void)kind, (void)w, (void)params, (void)bytes, (void)result;
    return false;
}
bool capture_record(struct stream *s, struct event *e, CUresult *result)
{
    (void)s, (void)e, (void)result;
    return false;
}
bool capture_wait(struct stream *s, struct event *e, CUresult *result)
{
    (void)s, (void)e, (void)result;
    return false;
}
CUresult capture_forbids(void)
{
    return CUDA_SUCCESS;
}
void capture_abandon(struct stream *s)
{
    (void)s;
}
CUresult capture_alloc(struct stream *s, struct pool *p, size_t bytes, CUdeviceptr *out)
{
    (void)s, (void)p, (void)bytes, (void)out;
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult capture_free(struct stream *s, CUdeviceptr address)
{
    (void)s, (void)address;
    return CUDA_ERROR_NOT_SUPPORTED;
}
