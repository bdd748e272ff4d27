/*
 * Test that pages of a worker that the driver does not lock are unmapped and dropped; the caller's record of
 * them is unchanged.
 */
#include "remote/worker/pinned.h"

#include <stdio.h>
#include <stdlib.h>

void *cb_driver[CB_CUDA_COUNT];

static CUresult answer;
static unsigned int locks;

static CUresult CUDAAPI exchange(CUstreamCaptureMode *mode)
{
    (void)mode;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI lock_pages(void *pages, size_t bytes, unsigned int flags)
{
    (void)pages, (void)bytes, (void)flags;
    locks++;
    return answer;
}

static void require(bool so, const char *what)
{
    if (so) return;
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
}

int main(void)
{
    struct cb_pinned pages = {0};
    cb_driver[CB_CUDA_cuThreadExchangeStreamCaptureMode] = (void *)exchange;
    cb_driver[CB_CUDA_cuMemHostRegister_v2] = (void *)lock_pages;
    answer = CUDA_ERROR_INVALID_CONTEXT;
    require(!cb_pinned_make(&pages, 1 << 16), "pages that the driver does not lock are refused");
    require(locks == 1, "the driver was asked");
    require(!pages.data && !pages.bytes, "nothing is left of them");
    answer = CUDA_SUCCESS;
    require(cb_pinned_make(&pages, 1 << 16), "locked pages are given");
    pages.data[pages.bytes - 1] = 1;
    require(pages.bytes == 1 << 16, "they are as many as were asked for");
    return 0;
}
