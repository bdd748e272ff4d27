/*
 * The gate: decides whether a launch may go to the card now, and makes it wait if it may not.
 *
 * Theory of operation. Under CB_GATE_RATE the container has one bucket of GPU nanoseconds in the usage page. A
 * launch that finds it empty fills it by (time since the last filling) x share, elected by a compare-and-swap
 * on that time; the bucket holds at most CB_BURST_NS, and a launch may drive it below zero, so a long kernel
 * runs and is paid off afterwards. Waiting launches resume when a small batch fits, which saves wake-ups and
 * keeps the card's queue from running dry. Under CB_GATE_TURN launches go out inside the time windows of the
 * plan, as long as at least half of the launch is expected to run before the window closes: over- and underruns
 * cancel out, and the agent balances what is left. CB_GATE_OPEN lets launches pass, but counts them and bounds
 * the work in flight, so that the card can be handed back.
 *
 * If the agent is dead, a tenant is neither stopped nor freed of its limit: time windows, and time that was
 * only lent, fall back to the rate.
 */
#ifndef CALABASH_SHIM_COMPUTE_GATE_H
#define CALABASH_SHIM_COMPUTE_GATE_H

#include "shim/compute_fence.h"
#include "shim/compute_limiter.h"

#define CB_POLL_MIN_NS 30000u

enum cb_verdict { CB_PASS, CB_WAIT_INFLIGHT, CB_WAIT_BUCKET, CB_WAIT_WINDOW };

/* The agent's order for a device, read consistently. */
struct cb_order {
    uint32_t word, gate, core_percent, neighbours;
    struct cb_plan plan, previous;
};

struct cb_window {
    uint64_t start, end;
};

/* Result of one check of the gate. */
struct cb_look {
    struct cb_order order;
    uint64_t heartbeat_ns;
    struct cb_window window;
    uint64_t inflight_ns;
    /* when a wait for the bucket, or for siblings, is over at the earliest; 0: not known */
    uint64_t resume_ns;
};

/*
 * Check the gate once. `waited`: the launch has been waiting; `stuck`: the work in flight has not progressed
 * for long.
 */
enum cb_verdict cb_gate_look(const struct cb_device_view *view, const struct cb_launch *launch, bool waited,
                             bool stuck, uint64_t now_ns, struct cb_look *look);

/* Wait until the gate lets the launch pass. Its charge may change while it waits. */
void cb_gate_wait(const struct cb_device_view *view, struct cb_launch *launch, struct cb_look *look,
                  enum cb_verdict verdict);

bool cb_bucket_take(struct cb_usage_device *usage, uint64_t cost_ns);

#endif
