/* The work queues of contexts. */
#ifndef CALABASH_SIM_QUEUE_H
#define CALABASH_SIM_QUEUE_H

#include "sim/node/state.h"

/* Open a queue on `device` for this process; -1 if all are in use. */
int queue_open(struct sim *s, uint32_t device, uint32_t priority);
void queue_close(struct sim *s, int queue);

/* Entries that can be posted without waiting. */
uint32_t queue_free_entries(struct sim *s, int queue);

struct queue_work {
    enum sim_work kind;
    uint64_t duration_ns;
    uint32_t sms;      /* multiprocessors; 0: all */
    uint64_t after[2]; /* 1 + the number of an entry that it follows; 0: none */
    bool follows_all;  /* and all earlier ones that are blocking */
    bool blocking;
    const struct sim_touch *touch; /* managed memory that must be resident before the work runs */
    uint32_t touches;
};

/* Post work; the caller is the only poster of this queue and has checked queue_free_entries(). Return its number. */
uint64_t queue_post(struct sim *s, int queue, const struct queue_work *w);

/*
 * Return true if entry `number` is complete; its end goes to *end_ns (may be NULL) while it is still in the
 * ring.
 */
bool queue_done(struct sim *s, int queue, uint64_t number, uint64_t *end_ns);

/* Sleep until entry `number` and all before it are complete. */
void queue_wait(struct sim *s, int queue, uint64_t number);
void queue_wait_through(struct sim *s, int queue, uint64_t number);

#endif
