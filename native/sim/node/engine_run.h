/* One look at a line of the card, shared by the parts of the engine. Private to them; engine.h has the theory. */
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
    uint32_t
        group; /* who runs at once: 1 + the slot of the server whose client this is, or 1 + SIM_PROCS_MAX +
                       that of the process whose green contexts these are; 0: nobody */
    uint32_t share; /* of RATE_ONE: how much of the card this client may use */
    uint32_t rate;  /* of RATE_ONE: how fast it runs now */
    bool green;     /* its share is its own: it is not divided among the contexts of its process */
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
    uint32_t lane;     /* the lane to run, or count when none is ready */
    bool contended;    /* another is ready too */
    uint64_t ready_ns; /* when the next lane becomes ready that is not yet */
};

static inline uint64_t max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Whether two lanes run at once. */
bool run_together(const struct lane *a, const struct lane *b);

/* Time of the card, and of a process that had the card to `rate` only; or both, the whole card. */
void run_account_card(struct run *r, uint64_t from_ns, uint64_t to_ns, bool copy);
void run_account_process(struct run *r, struct lane *l, uint64_t from_ns, uint64_t to_ns, bool copy,
                         uint32_t rate);
void run_account(struct run *r, struct lane *l, uint64_t from_ns, uint64_t to_ns, bool copy);

/* How long an entry takes from `start_ns` on, the managed memory included that it has to wait for. */
uint64_t run_duration(struct run *r, struct lane *l, uint64_t number, uint64_t start_ns);

void run_take_turn(struct run *r, uint32_t lane);
/* A lane that runs to the end of its turn unseen begins the next one where that would have been. */
void run_renew_turn(struct run *r, const struct choice *c, uint64_t until);

#endif
