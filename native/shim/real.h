/* The driver's own functions, behind the hooks; see real.c. */
#ifndef CALABASH_SHIM_REAL_H
#define CALABASH_SHIM_REAL_H

#include "shim/base.h"

/* The real functions, by exported name. Valid after loading. */
struct cb_real {
#define CB_NAME(name) __typeof__(name) *name;
#include "shim/hooks.inc"
#undef CB_NAME
    CUresult (*cuCtxGetDevice)(CUdevice *);
    CUresult (*cuDeviceGetAttribute)(int *, CUdevice_attribute, CUdevice);
    CUresult (*cuDeviceGetCount)(int *);
    CUresult (*cuDeviceGetUuid)(CUuuid *, CUdevice);
    CUresult (*cuDeviceGetUuid_v2)(CUuuid *, CUdevice);
    CUresult (*cuMemPoolGetAttribute)(CUmemoryPool, CUmemPool_attribute, void *);
    CUresult (*cuDeviceGetMemPool)(CUmemoryPool *, CUdevice);
    CUresult (*cuStreamIsCapturing)(CUstream, CUstreamCaptureStatus *);
    CUresult (*cuStreamIsCapturing_ptsz)(CUstream, CUstreamCaptureStatus *);
    CUresult (*cuDeviceGetGraphMemAttribute)(CUdevice, CUgraphMem_attribute, void *);
    CUresult (*cuStreamGetCtx)(CUstream, CUcontext *);
    CUresult (*cuGraphGetNodes)(CUgraph, CUgraphNode *, size_t *);
    CUresult (*cuGraphNodeGetType)(CUgraphNode, CUgraphNodeType *);
    CUresult (*cuGraphMemAllocNodeGetParams)(CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *);
    CUresult (*cuGraphChildGraphNodeGetGraph)(CUgraphNode, CUgraph *);
    CUresult (*cuCtxFromGreenCtx)(CUcontext *, CUgreenCtx);
    CUresult (*cuCtxGetCurrent)(CUcontext *);
    CUresult (*cuEventCreate)(CUevent *, unsigned int);
    CUresult (*cuEventDestroy_v2)(CUevent);
    CUresult (*cuEventRecord)(CUevent, CUstream);
    CUresult (*cuEventRecord_ptsz)(CUevent, CUstream);
    CUresult (*cuEventQuery)(CUevent);
    CUresult (*cuEventElapsedTime)(float *, CUevent, CUevent);
    CUresult (*cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode *);
    CUresult (*cuMemAdvise)(CUdeviceptr, size_t, CUmem_advise, CUdevice);
    CUresult (*cuMemAdvise_v2)(CUdeviceptr, size_t, CUmem_advise, CUmemLocation);
    CUresult (*cuDevicePrimaryCtxGetState)(CUdevice, unsigned int *, int *);
    nvmlReturn_t (*nvmlDeviceGetUUID)(nvmlDevice_t, char *, unsigned int);
};
extern struct cb_real cb_real;
#define CB_REAL(name) (cb_real.name)

void *cb_real_symbol(void *handle, const char *name); /* dlsym of the C library */
bool cb_load_cuda(void); /* fill the cu* part; return false if this machine has no driver */
bool cb_load_nvml(void);
/* true for the placeholder of a function that this driver does not have */
bool cb_real_is_absent(const void *function);

#endif
