/*
 * Inside the simulated libcuda.so.1: objects, the order of work, and what the modules ask of each other.
 *
 * Handles are pointers to objects in one arena that is never unmapped, so any value that a program passes can
 * be looked at: an object is what its magic says, and nonsense answers INVALID_HANDLE.
 *
 * Work. A context is one timeline: its kernels and copies go to its engine queue in the order in which they
 * are issued, which is always a legal order of its streams. What work does to memory (its effect) happens at
 * once in the issuing thread when it is cheap and nothing earlier is outstanding; otherwise it is deferred to
 * the stream's own thread. Host functions and waits for values have no modelled time: work behind them is
 * posted when they have ended.
 */
#ifndef CALABASH_SIM_CUDA_INTERNAL_H
#define CALABASH_SIM_CUDA_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include "image/image.h"
#include "sim/node/engine.h"
#include "sim/node/state.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* ---- objects ---- */

enum kind {
    KIND_FREE = 0,
    KIND_CONTEXT = 0x43A1,
    KIND_STREAM,
    KIND_STREAM_ENDING, /* destroyed, with work under way */
    KIND_EVENT,
    KIND_EVENT_ENDING, /* destroyed, with work that still names it */
    KIND_MODULE,
    KIND_LIBRARY,
    KIND_FUNCTION,
    KIND_GRAPH,
    KIND_NODE,
    KIND_EXEC,
    KIND_POOL,
    KIND_ARRAY,
    KIND_MIPMAP,
    KIND_PHYSICAL,
    KIND_TEXTURE,
    KIND_USER, /* a user object */
};

struct object {
    uint32_t kind;
    uint32_t generation;
};

void *object_new(enum kind kind, size_t size);
void object_free(void *object);
/* The object when `handle` is a live one of this kind, else NULL. Never faults. */
void *object_get(const void *handle, enum kind kind);

/* ---- process ---- */

struct module;
struct graph;
struct node;

struct device { /* a device as this process sees it */
    int ordinal;
    uint32_t index; /* in the node file */
    struct sim_device *shared;
    int instance;            /* MIG: place of its GPU instance in the node file, or -1 */
    struct context *primary; /* from cuInit on; active while it is retained */
    uint32_t primary_references;
    uint32_t primary_flags;
    CUuuid uuid;
    struct pool *default_pool, *current_pool;
    uint64_t graph_used, graph_used_high, graph_reserved, graph_reserved_high;
};

struct process {
    struct sim sim;
    uint32_t generation; /* of the slot: another's when we were taken for dead */
    volatile bool ready;
    bool forked;
    int device_count;
    struct device device[SIM_DEVICES_MAX];
    pthread_mutex_t lock; /* devices, contexts, modules */
    struct context *contexts;
    uint64_t next_id;
};

extern struct process process;

/* CUDA_SUCCESS when cuInit was called here (and not in a parent of a fork). */
CUresult process_check(void);
struct device *device_get(CUdevice device);
CUresult device_total(const struct device *d, size_t *bytes);

/* ---- contexts ---- */

struct context {
    struct object object;
    struct device *device;
    struct context *next;
    uint64_t id;
    uint32_t flags;
    bool primary;
    bool active; /* a primary context is an address before and after it is a context */
    int queue;
    uint32_t fatal_epoch;
    CUresult sticky;
    pthread_mutex_t lock; /* streams, events and the posting of work */
    pthread_cond_t changed;
    struct stream *streams;
    struct stream *legacy;
    uint64_t last_blocking; /* 1 + number of the last entry posted by a blocking stream */
    uint32_t deferred;      /* operations waiting in stream threads */
    struct event **marks;   /* [SIM_QUEUE_ENTRIES]: events whose time is the end of the entry in this place */
    size_t limit[CU_LIMIT_MAX];
    uint64_t peers; /* ordinals with peer access enabled */
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
};

struct context *context_current(void);
/* The current context when it is usable; *out is set on success. */
CUresult context_enter(struct context **out);
CUresult context_health(struct context *c);
/* The object of the device's primary context, not yet active. */
struct context *context_of_primary(struct device *d);
CUresult context_synchronize(struct context *c);
bool context_flags_are_valid(unsigned int flags);
void context_set_current(struct context *c);

/* ---- memory ---- */

enum memory {
    MEMORY_DEVICE = 1,
    MEMORY_MANAGED,
    MEMORY_HOST,       /* pinned, in our range */
    MEMORY_REGISTERED, /* the program's own pages */
    MEMORY_POOL,
    MEMORY_RESERVED, /* a VMM address reservation; its mappings are separate ranges */
    MEMORY_MAPPED,   /* a VMM mapping */
    MEMORY_IMPORTED, /* another process's, by IPC */
    MEMORY_GRAPH,    /* of an allocation node */
};

struct range {
    uint64_t base, size; /* as the program asked */
    uint64_t room;       /* what was taken of the address range */
    uint64_t charged;
    enum memory memory;
    struct device *device; /* NULL: host */
    struct context *context;
    struct pool *pool;
    void *owner;          /* physical handle of a mapping, array, graph */
    struct range *parent; /* the reservation that a mapping lies in */
    uint64_t handle_types;
    uint64_t id;
    uint32_t flags;
    uint32_t access; /* VMM: bit per ordinal that may read and write */
    int file;        /* memory file it was moved to for IPC, or -1 */
    uint64_t file_offset;
    bool pending_free; /* nobody may touch it */
    bool freeing;      /* its release stands in a stream */
};

/* Address space: blocks of 2 MiB in one reservation. */
uint64_t space_take(uint64_t bytes, uint64_t alignment, uint64_t wanted);
void space_give(uint64_t base, uint64_t bytes);
bool space_holds(uint64_t address);

void memory_lock(void);
void memory_unlock(void);
/* With the lock held: the range that holds `address`, or NULL. */
struct range *range_find(uint64_t address);
struct range *range_add(uint64_t base, uint64_t size, uint64_t room, enum memory memory);
void range_remove(struct range *r);
/* Make `r` the answer for [base, base + bytes) again. */
void range_restore(struct range *r, uint64_t base, uint64_t bytes);
/* As range_find, and registered host memory. */
struct range *range_find_any(uint64_t address);
/* Ranges below 1 MiB; a group (device ordinal, or SIM_DEVICES_MAX for the host) never shares a block with
 * another. */
struct range *small_take(uint32_t group, uint64_t size, enum memory memory);
bool small_give(struct range *r, uint32_t group);
/* Forget the contents of whole blocks. */
void memory_blank(uint64_t base, uint64_t bytes);
/* Every range in the space, by address. `visit` must not change the space. */
void ranges_visit(void (*visit)(struct range *r, void *argument), void *argument);

/* Take and charge memory; the base goes to *out. */
CUresult memory_take(struct context *c, struct device *d, uint64_t bytes, enum memory memory,
                     struct range **out);
void memory_drop(struct range *r);
void memory_drop_context(struct context *c);
/* Whether `c` may touch [address, address + bytes) as device memory (or mapped host memory). */
bool memory_allows(struct context *c, uint64_t address, uint64_t bytes);
/* Whether the address lies in something that was allocated, mapped or registered. */
bool memory_knows(uint64_t address);
/* As above for either side of a copy: addresses outside our range are the program's own. */
bool memory_is_ours(uint64_t address);
/* Free what was allocated at `base`; `host` says which kind of free it is. */
CUresult memory_release(uint64_t base, bool host);

struct pool {
    struct object object;
    struct device *device;
    struct pool *next;
    uint64_t used, used_high, reserved, reserved_high;
    uint64_t release_threshold, max_size;
    uint64_t cached; /* reserved and not used: */
    struct kept *kept;
    bool is_default;
    int reuse[4];
    uint32_t access; /* bit per ordinal */
};
CUresult pool_device_default(struct device *d, struct pool **out);
CUresult pool_take(struct context *c, struct pool *p, uint64_t bytes, struct range **out);
void pool_drop(struct range *r);
/* Give back what the pool keeps beyond `keep` bytes; whether that was anything. */
bool pool_trim(struct pool *p, uint64_t keep);
bool pools_trim_device(struct device *d);

struct array {
    struct object object;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct range *range;
    uint64_t base;
    size_t element, row_bytes, slice_bytes, bytes;
    struct device *device;
    struct mipmap *mipmap;
};
size_t format_bytes(CUarray_format f);

/* ---- work ---- */

struct stream {
    struct object object;
    struct context *context;
    struct stream *next;
    uint64_t id;
    uint32_t flags;
    int priority;
    bool legacy, per_thread, dying;
    pthread_t owner;   /* of a per-thread stream */
    uint64_t last;     /* 1 + number of its last posted entry */
    uint64_t pushed;   /* deferred operations ever queued */
    uint64_t finished; /* ...and ever finished */
    uint32_t unposted; /* of those waiting, how many have no place in the queue yet */
    struct work *head, *tail;
    bool thread_started;
    pthread_t thread;
    struct capture *capture;
    uint32_t sync_policy;
};

/* A point in the effects of a stream; met for ever once the stream is gone. */
struct depend {
    struct stream *stream;
    uint64_t id;
    uint64_t finished;
};

struct event {
    struct object object;
    struct context *context;
    uint64_t context_id;
    uint32_t references; /* deferred work that names it */
    uint32_t flags;
    enum { EVENT_NEVER, EVENT_PENDING, EVENT_POSTED, EVENT_DONE } state;
    uint64_t recorded_ns;
    uint64_t number; /* 1 + entry whose end is the event's time; 0: none */
    uint64_t end_ns; /* valid in EVENT_DONE */
    uint64_t generation;
    struct depend effects; /* what must have happened to memory when the event is complete */
    struct event *next_mark;
    bool marked;
    struct capture *capture; /* recorded in a stream that captures */
    uint64_t capture_id;
    struct node **capture_nodes;
    size_t capture_count;
};

enum work_kind { WORK_TIMED, WORK_EFFECT, WORK_HOST, WORK_RECORD, WORK_WAIT };

/* One operation of a stream. `effect` may be NULL; it runs in stream order and answers an error for the
 * context. */
struct work {
    enum work_kind kind;
    enum sim_work engine;
    uint64_t duration_ns;
    bool heavy; /* its effect is worth another thread */
    CUresult (*effect)(struct context *c, void *argument);
    void *argument;
    size_t argument_bytes; /* copied when the work is deferred */
    void (*release)(void *argument);
    struct event *event;
    uint64_t event_generation;
    struct depend after; /* one more thing to follow; stream NULL: none */
    /* filled when deferred */
    struct work *next;
    bool posted;
    uint64_t number;
    size_t depend_count;
    struct depend depend[];
};

/* Resolve a stream argument in the current context: NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD included.
 */
CUresult stream_get(CUstream handle, struct stream **out);
struct stream *stream_legacy(struct context *c);
struct stream *stream_default(struct context *c);
CUresult stream_submit(struct stream *s, const struct work *w);
CUresult stream_submit_and_wait(struct stream *s, const struct work *w);
CUresult stream_wait(struct stream *s);
bool stream_idle(struct stream *s);
void stream_release_all(struct context *c);
/* Take `s` out of its context's list; the context's lock is held. */
void stream_unlink(struct stream *s);
/* Post one entry; waits for room. The context's lock is held (and dropped while waiting). Returns 1 + its
 * number. */
uint64_t context_post(struct context *c, enum sim_work kind, uint64_t duration_ns);
uint64_t stream_last(const struct stream *s);
void stream_posted(struct stream *s, uint64_t last);

/* Events; the context's lock is held for the first two. */
void event_stamp(struct context *c, struct event *e, uint64_t last, struct depend effects,
                 uint64_t recorded_ns);
bool depend_is_met(const struct depend *d);
void event_unmark(struct event *e);
/* Deferred work names the event, and no longer does: it outlives its handle by that. */
void event_hold(struct event *e);
void event_release(struct event *e);
/* The context ends: no event may wait for its books any more. */
void event_forget_all(struct context *c);
bool event_done(struct event *e);
CUresult event_wait(struct event *e);

/* Non-zero while a call of the per-thread default stream flavour is under way in this thread. */
extern __thread int per_thread_default;

/* A free of graph memory by the program; false when `r` is none. */
bool graph_memory_free(struct range *r);

/* ---- capture and graphs ---- */

enum node_kind {
    NODE_KERNEL,
    NODE_MEMCPY,
    NODE_MEMSET,
    NODE_HOST,
    NODE_GRAPH,
    NODE_EMPTY,
    NODE_WAIT_EVENT,
    NODE_RECORD_EVENT,
    NODE_ALLOC,
    NODE_FREE,
};

/* When `s` captures, append a node that does `w` (its argument is copied) and return true with the result. */
bool capture_work(struct stream *s, enum node_kind kind, const struct work *w, const void *params,
                  size_t bytes, CUresult *result);
bool capture_record(struct stream *s, struct event *e, CUresult *result);
bool capture_wait(struct stream *s, struct event *e, CUresult *result);
/* CUDA_SUCCESS, or the error of a call that is forbidden while the calling thread captures. */
CUresult capture_forbids(void);
void capture_abandon(struct stream *s);
/* A call that a capturing stream forbids was made: the capture is void. */
CUresult capture_refuse(struct stream *s);
CUresult capture_alloc(struct stream *s, struct pool *p, size_t bytes, CUdeviceptr *out);
CUresult capture_free(struct stream *s, CUdeviceptr address);
CUresult capture_graph(struct stream *s, struct graph *g);

/* ---- images, functions, kernels ---- */

struct kernel_call {
    unsigned int grid[3], block[3];
    const unsigned char *parameters; /* packed at the offsets of the registry's signature */
};

struct kernel_cost {
    uint64_t bytes, flops, exact_ns;
};

struct kernel { /* one of the registry */
    const char *name;
    const char *signature; /* one letter a parameter: p pointer, i int, f float, l 64-bit integer */
    void (*cost)(const struct kernel_call *call, struct kernel_cost *cost);
    CUresult (*run)(struct context *c, const struct kernel_call *call); /* NULL: no effect on memory */
};

/* Offsets and sizes of a registered kernel's parameters; returns their number. */
uint32_t kernel_parameters(const struct kernel *k, struct parameter *out, uint32_t *bytes);
void module_drop_context(struct context *c);

const struct kernel *kernel_find(const char *symbol);
uint64_t kernel_duration(const struct sim_profile *p, const struct kernel_cost *cost);
uint64_t copy_duration(const struct sim_profile *p, uint64_t bytes, uint64_t bandwidth_bps);

struct function {
    struct object object;
    struct module *module;
    const struct entry_point *entry;
    const struct kernel *kernel; /* NULL: known by name only */
    int attribute_shared_max, attribute_carveout;
    struct function *next;
};

const struct image *function_image(const struct function *f);

/* Check a launch and describe it as work; `buffer` (LAUNCH_BYTES, aligned to 16) receives its argument. */
#define LAUNCH_BYTES 4352
CUresult launch_prepare(const struct function *f, const unsigned int *grid, const unsigned int *block,
                        void **kernelParams, void **extra, const struct sim_profile *profile, struct work *w,
                        unsigned char *buffer);

/* Pointers to the packed parameters of a launch that launch_prepare described. */
void launch_parameters(const struct work *w, void **out);

/* The same for copies and fills; `buffer` has COPY_BYTES. */
#define COPY_BYTES 128
CUresult copy_prepare(struct context *c, const CUDA_MEMCPY3D *p, struct work *w, unsigned char *buffer);
void copy_describe(const struct work *w, CUDA_MEMCPY3D *out);
CUresult fill_prepare(struct context *c, const CUDA_MEMSET_NODE_PARAMS *p, struct work *w,
                      unsigned char *buffer);
void fill_describe(const struct work *w, CUDA_MEMSET_NODE_PARAMS *out);

/* Close the file behind a range that was moved there for other processes. */
void ipc_close_file(struct range *r);

/* ---- small things ---- */

/* Count a call of something that is not served and answer NOT_SUPPORTED. */
CUresult unserved(const char *name);

#endif
