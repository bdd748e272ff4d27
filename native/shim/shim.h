/*
 * What the modules of the shim share: the process' state, the real driver, and the charging calls.
 *
 * The shim is loaded before everything else of a tenant's process and stands in front of the CUDA driver API
 * and NVML. It does nothing until the first such call; then start.c finds the slot, maps its pages and claims
 * a process slot. Real functions are reached as CB_REAL(cuMemAlloc_v2)(...): a table filled once, a function
 * absent from this driver is never called because its hook is never handed out.
 */
#ifndef CALABASH_SHIM_H
#define CALABASH_SHIM_H

#define __CUDA_API_VERSION_INTERNAL /* declares every version and every per-thread variant under its own \
                                          name */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <cuda.h>
#include <nvml.h>
#pragma GCC visibility pop

#include "page/page.h"
#include "shim/spin.h"

/* <cudaGL.h> needs OpenGL's headers. */
CUresult CUDAAPI cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice device)
    __attribute__((visibility("default")));
CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice device)
    __attribute__((visibility("default")));

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CB_LIKELY(x)   __builtin_expect(!!(x), 1)
#define CB_UNLIKELY(x) __builtin_expect(!!(x), 0)

#define CB_ORDINALS_MAX 64

enum cb_phase { CB_PHASE_NEW = 0, CB_PHASE_BUSY = 1, CB_PHASE_READY = 2, CB_PHASE_REFUSED = 3 };

struct cb_shim {
    int cuda_ready; /* slot claimed, driver loaded: what every CUDA hook looks at */
    int nvml_ready;
    int phase; /* enum cb_phase, of the slot; everything below is valid once READY */
    uint32_t slot;
    uint32_t device_count;
    int ordinal_count; /* driver ordinals known; 0 before cuInit */
    const struct cb_limits *limits;
    struct cb_usage *usage;
    struct cb_usage_proc *proc;
    int8_t device_of_ordinal[CB_ORDINALS_MAX]; /* slot device, or -1: not this tenant's */
};
extern struct cb_shim cb;

/* The real functions, by exported name. */
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
    CUresult (*cuCtxGetCurrent)(CUcontext *);
    CUresult (*cuEventCreate)(CUevent *, unsigned int);
    CUresult (*cuEventDestroy_v2)(CUevent);
    CUresult (*cuEventRecord)(CUevent, CUstream);
    CUresult (*cuEventRecord_ptsz)(CUevent, CUstream);
    CUresult (*cuEventQuery)(CUevent);
    CUresult (*cuEventElapsedTime)(float *, CUevent, CUevent);
    CUresult (*cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode *);
    CUresult (*cuDevicePrimaryCtxGetState)(CUdevice, unsigned int *, int *);
    nvmlReturn_t (*nvmlDeviceGetUUID)(nvmlDevice_t, char *, unsigned int);
};
extern struct cb_real cb_real;
#define CB_REAL(name) (cb_real.name)

/* resolve.c: the real dynamic linker and the real libraries. */
struct cb_hook {
    const char *name;
    void *hook;
    void **real; /* where the real address goes; NULL for a denied function, which has no use for it */
};
extern const struct cb_hook cb_hooks[];
extern const unsigned cb_hook_count;
void *cb_real_symbol(void *handle, const char *name);
bool cb_load_cuda(void); /* fills the cu* part of cb_real; false: no driver on this machine */
bool cb_load_nvml(void);
bool cb_hook_served(const struct cb_hook *hook); /* after loading: this driver has the function */
const struct cb_hook *cb_hook_named(const char *name);
const struct cb_hook *cb_hook_of_real(const void *address, const char *name);

/* start.c: slot discovery and the process slot. */
CUresult cb_start_cuda(void);     /* CUDA_SUCCESS, or why not, after one line on stderr */
nvmlReturn_t cb_start_nvml(void); /* the same for NVML */
#define CB_ENTER()                                                             \
    do {                                                                       \
        if (CB_UNLIKELY(!__atomic_load_n(&cb.cuda_ready, __ATOMIC_ACQUIRE))) { \
            CUresult cb_entered = cb_start_cuda();                             \
            if (cb_entered != CUDA_SUCCESS) return cb_entered;                 \
        }                                                                      \
    } while (0)
#define CB_ENTER_NVML()                                                        \
    do {                                                                       \
        if (CB_UNLIKELY(!__atomic_load_n(&cb.nvml_ready, __ATOMIC_ACQUIRE))) { \
            nvmlReturn_t cb_entered = cb_start_nvml();                         \
            if (cb_entered != NVML_SUCCESS) return cb_entered;                 \
        }                                                                      \
    } while (0)
void cb_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* slot.c: opening and checking the slot's files. */
struct cb_slot_files {
    const struct cb_limits *limits;
    struct cb_usage *usage;
    int lease_fd; /* -1: the slot has no lease */
};
bool cb_slot_open(struct cb_slot_files *files); /* false after cb_say */
uint64_t cb_process_start_time(int32_t pid);    /* 0: no such process */

/* nvml_view.c */
int cb_device_of_nvml(nvmlDevice_t handle); /* -1: not of the slice */
int cb_nvml_denied(void);

/* device.c: which of the slot's devices a driver ordinal is. */
void cb_devices_narrow(void); /* before cuInit: CUDA_VISIBLE_DEVICES becomes a list of this slot's UUIDs */
void cb_devices_learn(void);  /* after cuInit: fills device_of_ordinal */
static inline int cb_device_of(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < cb.ordinal_count ? cb.device_of_ordinal[ordinal] : -1;
}
static inline int cb_device_current(void)
{
    CUdevice ordinal = 0;
    if (CB_UNLIKELY(cb.ordinal_count != 1) && CB_REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS) return -1;
    return cb_device_of(ordinal);
}
/* The device, or -1 when it is there to be seen only: no cap, no policy, nothing to charge. */
static inline int cb_device_charged(int device)
{
    if (device < 0) return -1;
    const struct cb_limits_device *limits = &cb.limits->device[device];
    return limits->memory_limit_bytes == 0 && limits->policy == CB_POLICY_NONE ? -1 : device;
}

/* charge.c: the container's counter. A device of -1 is never charged and never denied. Bytes are what cb_cost
 * says. */
static inline uint64_t cb_cost(uint64_t bytes)
{
    const uint64_t large = 2ull << 20;
    if (bytes >= 1ull << 20)
        return bytes > UINT64_MAX - large ? UINT64_MAX : (bytes + large - 1) & ~(large - 1);
    return bytes == 0 ? 512 : (bytes + 511) & ~511ull;
}
void cb_denied(int device);                          /* counts a refusal */
bool cb_reserve_quietly(int device, uint64_t bytes); /* as the next, but a refusal is not yet final */
bool cb_reserve(int device, uint64_t bytes);         /* before the driver is called */
void cb_commit(int device, uint64_t bytes);          /* the driver has allocated */
void cb_cancel(int device, uint64_t bytes);          /* the driver has refused */
void cb_uncharge(int device, uint64_t bytes);        /* the driver has freed */
/* After the driver has refused what was reserved: whether it may still hold the memory of a process that has
 * just died. Waits for a moment then; call the driver again. `*tries` begins at 0. */
bool cb_driver_lags(unsigned *tries);
#define CB_CALL_DRIVER(result, call)                                                          \
    do {                                                                                      \
        unsigned tries_ = 0;                                                                  \
        do {                                                                                  \
            result = call;                                                                    \
        } while (CB_UNLIKELY(result == CUDA_ERROR_OUT_OF_MEMORY) && cb_driver_lags(&tries_)); \
    } while (0)
bool cb_true_up(int device, uint64_t from, uint64_t to); /* a charge turns out to be another size */
uint64_t cb_limit_left(int device,
                       uint64_t *limit); /* bytes free under the cap; *limit: the cap, 0 for none */

/* ledger.c: what each pointer or handle was charged. */
enum cb_kind { CB_LINEAR = 1, CB_ARRAY, CB_MIPMAP, CB_GRAPH_EXEC, CB_MODULE, CB_LIBRARY };
struct cb_entry {
    uint64_t key;
    uint64_t bytes;
    uint64_t context; /* the driver frees it together with this context; 0: with none */
    int32_t device;
    uint32_t kind;
};
bool cb_ledger_put(const struct cb_entry *entry); /* false: no host memory */
bool cb_ledger_take(uint32_t kind, uint64_t key, struct cb_entry *entry);
bool cb_ledger_get(uint32_t kind, uint64_t key, struct cb_entry *entry);
void cb_ledger_drop_context(int device,
                            uint64_t context); /* the context is gone: uncharges what lived in it */
void cb_ledger_forked(void);

/* memory.c: one allocation that the ledger remembers, whatever the family. */
struct cb_claim {
    int device;
    uint64_t bytes;
    uint64_t context;
};
bool cb_claim_begin(struct cb_claim *claim, uint64_t bytes); /* on the current device; false: over the cap */
bool cb_claim_resize(struct cb_claim *claim, uint64_t bytes);
void cb_claim_end(struct cb_claim *claim, CUresult result, uint32_t kind, uint64_t key);
void cb_claim_release(uint32_t kind, uint64_t key); /* after the driver has freed it */

/* memory_pool.c: memory that the driver keeps in pools, the graphs' own among them. */
extern int cb_pools_used; /* set once the process has a pool */
struct cb_pool;
struct cb_pool *cb_pool_of_graphs(CUdevice ordinal); /* NULL: not this tenant's device, or no host memory */
/* Around one driver call that may let the pool grow by up to `bytes`: */
bool cb_pool_begin(struct cb_pool *pool, uint64_t bytes, bool may_reuse);
CUresult cb_pool_refused(const struct cb_pool *pool); /* out of memory, counted */
bool cb_pool_end(struct cb_pool *pool);               /* false: it has grown beyond the cap */
void cb_pools_refresh(int device);                    /* -1: of all devices */
void cb_pools_trim(int device);
void cb_pools_forked(void);
static inline void cb_pools_settle(void) /* the GPU has caught up: pools may have given memory back */
{
    if (CB_UNLIKELY(__atomic_load_n(&cb_pools_used, __ATOMIC_RELAXED))) cb_pools_refresh(-1);
}

void cb_vmm_forked(void);
void cb_graphs_forked(void);
void cb_contexts_forked(void);

#endif
