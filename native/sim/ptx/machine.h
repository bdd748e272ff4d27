/*
 * A warp: 32 lanes that run together as long as they take the same path.
 *
 * Lanes that diverge at a branch become fragments. Each fragment has a position in the program, a mask of lanes
 * and a frame; their parent waits at the reconvergence point (the branch's immediate post-dominator) and
 * continues when the last of them has arrived. A call is a parent too: it waits behind the call for lanes that
 * return. Any fragment that does not wait may run, in turn; and lanes that have arrived continue without one
 * that has run long. So lanes of one warp may wait for each other (a lock, a flag), as they may since Volta.
 */
#ifndef CALABASH_SIM_PTX_MACHINE_H
#define CALABASH_SIM_PTX_MACHINE_H

#include "sim/ptx/program.h"
#include "sim/ptx/run.h"

#define BARRIERS         16
#define SHARED_PARTS     3 /* the entry's, the module's, the launch's */
#define SHARED_PART_BITS 20
#define SHARED_PART      (1u << SHARED_PART_BITS)
#define DEPTH_MAX        4096u        /* of nested calls */
#define LOCAL_MAX        (512u << 10) /* bytes of a lane's local memory */
#define FRAMES_MAX       (512u << 20) /* bytes of a block's registers in called functions */
#define WARP_TURN        4096u        /* operations before another fragment may run */

enum fragment_state { FRAGMENT_RUNS, FRAGMENT_WAITS, FRAGMENT_AT_BARRIER, FRAGMENT_AT_SYNC };

struct frame {
    struct frame *caller;
    const struct routine *function;
    const struct op *call; /* of the caller */
    uint32_t local_base, depth;
    struct frame *made_next, **made_link; /* all frames of the warp */
    _Alignas(64) uint8_t registers[];
};

struct fragment {
    const struct op *at, *join;
    uint32_t mask;   /* lanes that run here; of a parent those that have arrived */
    uint32_t expect; /* of a parent: lanes that have not arrived */
    struct fragment *parent;
    struct frame *frame;
    struct frame *called; /* of a call: the callee's */
    enum fragment_state state;
    uint8_t barrier;
    bool passed;         /* a barrier with a reduction: the result is to be fetched */
    uint64_t grid_phase; /* the grid's barrier at which it waits: 1 + number of earlier ones; 0: none */
    struct fragment *next;
    struct fragment *made_next; /* all fragments of the warp, used and spare */
};

struct barrier {
    uint32_t arrived, expected;       /* threads; expected 0: all */
    uint32_t true_count, false_count; /* of a reduction under way */
    uint32_t last_count;              /* and of the one before it */
    bool last_all, last_any;
};

struct block;

struct warp {
    uint8_t *base[2]; /* registers of the running frame, constants */
    struct block *block;
    struct fragment *running;
    struct fragment *fragments; /* fragments with lanes of their own: not parents */
    struct fragment *spare, *made;
    struct frame *frames, *spare_frame;
    uint32_t begun, alive; /* lanes that exist, that have not ended */
    uint32_t carry;        /* of add.cc and its like */
    uint32_t index;
    uint32_t tid[3][LANES];
    uint8_t *local; /* LANES times local_capacity bytes */
    uint32_t local_capacity, local_used;
    uint32_t turn;
    bool yielded;
};

struct block {
    struct run *run;
    uint32_t ctaid[3];
    uint64_t number;
    uint8_t *shared[SHARED_PARTS], *shared_memory;
    uint32_t shared_size[SHARED_PARTS], shared_bytes;
    uint32_t warp_count, threads_alive;
    struct barrier barrier[BARRIERS];
    struct block *next;
    struct span span[2]; /* memory that was looked up last */
    uint64_t ops, bytes;
    uint64_t frame_bytes; /* registers of functions that were called and have not returned */
    struct warp warp[];
};

#endif
