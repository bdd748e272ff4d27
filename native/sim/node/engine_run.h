/*
 * One update of a line of the card, shared by the parts of the engine and private to them; engine.h has the
 * theory.
 */
#ifndef CALABASH_SIM_ENGINE_RUN_H
#define CALABASH_SIM_ENGINE_RUN_H

#include "sim/node/state.h"

#define ENTRY(q, n) (&(q)->entries[(n) % SIM_QUEUE_ENTRIES])
#define RATE_ONE    65536u

struct lane {
    struct sim_queue *queue;
    uint64_t head, posted;
    uint64_t left_ns;
    uint64_t last_end_ns;
    uint32_t started;
    /*
     * lanes with the same number run at once: 1 + the slot of their MPS server, or 1 + SIM_PROCS_MAX + the
     * slot of the process with green contexts; 0: no group
     */
    uint32_t group;
    uint32_t share; /* of RATE_ONE: the part of the card that this client may use */
    uint32_t rate;  /* of RATE_ONE: its present speed */
    bool green;     /* its share is not divided among the contexts of its process */
    bool ready;
    uint64_t loose;   /* as that of its queue */
    uint64_t next_ns; /* when the next kernel of a loose lane may begin */
};

struct run {
    struct sim *sim;
    struct sim_device *device;
    uint32_t share, shares; /* the multiprocessors of this line, of those of the card */
    uint32_t gi, gi_share;  /* the GPU instance of this line, and its multiprocessors; 0: none */
    bool commit;
    uint64_t time_ns, slice_end_ns;
    uint32_t current, count;
    const struct sim_queue *target; /* prediction stops when this queue... */
    uint64_t target_number;         /* ...has completed this entry, */
    uint64_t target_end_ns;         /* at this time */
    struct lane lane[SIM_QUEUES_MAX];
};

struct choice {
    uint32_t lane;     /* the lane to run, or count if none is ready */
    bool contended;    /* another is ready too */
    uint64_t ready_ns; /* when the next lane becomes ready */
};

static inline uint64_t max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Return true if two lanes run at once. */
bool run_together(const struct lane *a, const struct lane *b);

/* Account for time of the card, and of a process that had the card to `rate` only; or both, the whole card. */
void run_account_card(struct run *r, uint64_t from_ns, uint64_t to_ns, bool copy);
void run_account_process(struct run *r, struct lane *l, uint64_t from_ns, uint64_t to_ns, bool copy,
                         uint32_t rate);
void run_account(struct run *r, struct lane *l, uint64_t from_ns, uint64_t to_ns, bool copy);

/* Duration of an entry from `start_ns` on, including the managed memory that it waits for. */
uint64_t run_duration(struct run *r, struct lane *l, uint64_t number, uint64_t start_ns);

void run_take_turn(struct run *r, uint32_t lane);
/* If a lane ran past the end of its slice between two updates, its next slice begins where that end was. */
void run_renew_turn(struct run *r, const struct choice *c, uint64_t until);

#endif
