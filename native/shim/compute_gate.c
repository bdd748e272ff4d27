/* Checking of the gate and waiting at it; compute_gate.h has the theory. */
#define _GNU_SOURCE
#include "shim/compute_gate.h"

#include "shim/compute_estimate.h"
#include "shim/compute_inflight.h"
#include "shim/compute_siblings.h"
#include "shim/compute_words.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CB_BURST_NS     20000000 /* most GPU time that the bucket accumulates */
#define CB_BATCH_NS     1000000  /* a waiting launch resumes when this much is there */
#define CB_FILL_NS      20000u   /* smallest interval worth a compare-and-swap */
#define CB_HEARTBEAT_NS 200000000u
#define CB_LENT_NS      1000000000u /* without a heartbeat for so long, idle time is no longer lent */
#define CB_LEAD_NS      60000u      /* latency of a wake-up */
#define CB_DEMAND_NS    50000000u   /* a waiting launch publishes its demand at least so often */
#define CB_POLL_MAX_NS  1000000u
#define CB_STUCK_NS \
    1000000000u /* work in flight that does not progress for so long no longer blocks launches */
#define CB_UNMEASURED_NS 10000000000u /* the same for a kernel that was never measured, while it runs */
#define CB_SINGLE_NS     200000000u   /* behind such a kernel no other is queued in a time window */
#define CB_TAIL_NS       50000000u    /* launches without a fence are taken as done after so long a silence */
#define CB_EXPIRE_NS     10000000u
#define CB_SIBLINGS_NS   1000000u /* as CB_INFLIGHT_NS, for work of other processes ahead of a long kernel */

/* ---- the agent's order ---- */

static void order_read(const struct cb_limits_device *device, uint64_t now_ns, struct cb_order *order)
{
    for (int attempt = 0;; attempt++) {
        order->word = __atomic_load_n(&device->word, __ATOMIC_ACQUIRE);
        order->gate = LOAD(&device->gate);
        order->core_percent = LOAD(&device->core_percent);
        order->neighbours = LOAD(&device->neighbours);
        if (order->gate == CB_GATE_TURN) {
            order->plan = device->plan;
            order->previous = device->previous;
        }
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if ((order->word & 1) == 0 && LOAD(&device->word) == order->word) break;
        if (attempt == 1000) { /* the agent died while it wrote */
            order->gate = CB_GATE_RATE;
            break;
        }
    }
    uint64_t heartbeat = LOAD(&cb_compute_limits->heartbeat_ns);
    if (order->gate == CB_GATE_TURN && now_ns > heartbeat + CB_HEARTBEAT_NS) order->gate = CB_GATE_RATE;
    if (order->gate == CB_GATE_OPEN && order->core_percent < 100 && heartbeat != 0 &&
        now_ns > heartbeat + CB_LENT_NS)
        order->gate = CB_GATE_RATE;
}

static struct cb_window plan_window(const struct cb_plan *plan, uint64_t now_ns)
{
    const struct cb_window never = {UINT64_MAX, UINT64_MAX};
    if (plan->end_ns <= plan->start_ns) return never;
    if (now_ns < plan->end_ns) return (struct cb_window){plan->start_ns, plan->end_ns};
    if (plan->period_ns == 0) return never;
    uint64_t skip = (now_ns - plan->start_ns) / plan->period_ns * plan->period_ns;
    struct cb_window window = {plan->start_ns + skip, plan->end_ns + skip};
    if (now_ns >= window.end) {
        window.start += plan->period_ns;
        window.end += plan->period_ns;
    }
    return window;
}

/* The time window that is open now, or else the next one. */
static struct cb_window next_window(const struct cb_order *order, uint64_t now_ns)
{
    if (now_ns < order->plan.from_ns) {
        struct cb_window window = plan_window(&order->previous, now_ns);
        if (window.start < order->plan.from_ns) {
            if (window.end > order->plan.from_ns) window.end = order->plan.from_ns;
            return window;
        }
        now_ns = order->plan.from_ns;
    }
    return plan_window(&order->plan, now_ns);
}

/* ---- the bucket ---- */

static int64_t bucket_fill(struct cb_usage_device *usage, uint32_t core_percent, uint64_t now_ns)
{
    uint64_t filled = LOAD(&usage->bucket_time_ns);
    if (now_ns > filled + CB_FILL_NS &&
        __atomic_compare_exchange_n(&usage->bucket_time_ns, &filled, now_ns, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
        uint64_t elapsed = now_ns - filled;
        if (elapsed > 100000000000u) elapsed = 100000000000u;
        int64_t gain = (int64_t)(elapsed * core_percent / 100), old = LOAD(&usage->bucket_ns), filled_ns;
        do {
            filled_ns = old + gain < CB_BURST_NS ? old + gain : CB_BURST_NS;
        } while (!__atomic_compare_exchange_n(&usage->bucket_ns, &old, filled_ns, false, __ATOMIC_RELAXED,
                                              __ATOMIC_RELAXED));
    }
    return LOAD(&usage->bucket_ns);
}

bool cb_bucket_take(struct cb_usage_device *usage, uint64_t cost_ns)
{
    if (ADD(&usage->bucket_ns, -(int64_t)cost_ns) > 0) return true;
    ADD(&usage->bucket_ns, (int64_t)cost_ns);
    return false;
}

/* ---- one check of the gate ---- */

/* Time that the card still needs for this container's work, by the clock: fences report later. */
static uint64_t card_remaining_ns(const struct cb_device_view *view, uint64_t inflight_ns, uint64_t now_ns)
{
    uint64_t until = LOAD(&view->usage->busy_until_ns);
    uint64_t left = until > now_ns ? until - now_ns : 0;
    return left < inflight_ns ? left : inflight_ns;
}

/*
 * A little work queued behind the running work keeps the card busy; more would only make others wait. Behind
 * the work of another process of the container a long kernel is not queued but mixed with it, because the card
 * divides its time between processes: that makes neither faster, and their times could no longer be separated.
 * So it waits until that work is nearly done.
 */
static uint64_t inflight_limit(const struct cb_device_view *view, const struct cb_launch *launch,
                               uint64_t inflight_ns)
{
    return launch->cost_ns >= CB_LONG_NS && inflight_ns > LOAD(view->own_inflight_ns) ? CB_SIBLINGS_NS
                                                                                      : CB_INFLIGHT_NS;
}

static bool inflight_allows(const struct cb_device_view *view, const struct cb_launch *launch,
                            uint64_t inflight_ns, uint64_t left_ns, uint64_t now_ns)
{
    if (LOAD(&launch->estimate->mean_ns) == 0 &&
        (LOAD(&launch->estimate->pending) >= CB_UNKNOWN_PENDING ||
         cb_siblings_measure(launch->device, launch->estimate->key, now_ns)))
        return false;
    uint64_t limit = inflight_limit(view, launch, inflight_ns);
    if (inflight_ns >= CB_INFLIGHT_NS_MAX) /* estimates may be wrong: never more than one long kernel ahead */
        return inflight_ns <= launch->cost_ns + launch->cost_ns / 8 && left_ns < limit / 2;
    return left_ns < limit;
}

enum cb_verdict cb_gate_look(const struct cb_device_view *view, const struct cb_launch *launch, bool waited,
                             bool stuck, uint64_t now_ns, struct cb_look *look)
{
    look->heartbeat_ns = LOAD(&cb_compute_limits->heartbeat_ns);
    order_read(view->limits, now_ns, &look->order);
    look->inflight_ns = LOAD(&view->usage->inflight_ns);
    if (view->limits->policy == CB_POLICY_METERED) return CB_PASS;
    uint64_t ahead = card_remaining_ns(view, look->inflight_ns, now_ns);
    if (!stuck && !inflight_allows(view, launch, look->inflight_ns, ahead, now_ns)) {
        uint64_t limit = inflight_limit(view, launch, look->inflight_ns);
        look->resume_ns = ahead > limit ? now_ns + ahead - limit : 0;
        return CB_WAIT_INFLIGHT;
    }
    if (look->order.gate == CB_GATE_TURN) {
        look->window = next_window(&look->order, now_ns);
        if (now_ns + CB_LEAD_NS < look->window.start) return CB_WAIT_WINDOW;
        uint64_t left = look->window.end > now_ns ? look->window.end - now_ns : 0;
        uint64_t mean = LOAD(&launch->estimate->mean_ns),
                 span = mean > launch->cost_ns ? mean : launch->cost_ns;
        if (span >= CB_SINGLE_NS && look->inflight_ns >= span / 2 && !stuck) {
            look->resume_ns = 0;
            return CB_WAIT_INFLIGHT;
        }
        if (ahead + span / 2 <= left || stuck) return CB_PASS;
        /*
         * Longer than any of our time windows will be: launch it at the beginning of one, the best moment there
         * is.
         */
        uint64_t length = look->window.end - look->window.start;
        if (ahead == 0 && span > length && left > length / 2) return CB_PASS;
        look->resume_ns = 0;
        return ahead > 0 ? CB_WAIT_INFLIGHT : CB_WAIT_WINDOW;
    }
    if (look->order.gate != CB_GATE_RATE || look->order.core_percent >= 100) return CB_PASS;
    int64_t bucket = LOAD(&view->usage->bucket_ns);
    int64_t enough = waited && launch->cost_ns < CB_BATCH_NS ? CB_BATCH_NS : 0;
    if (bucket <= enough) bucket = bucket_fill(view->usage, look->order.core_percent, now_ns);
    if (bucket > enough && cb_bucket_take(view->usage, launch->cost_ns)) return CB_PASS;
    enough = launch->cost_ns < CB_BATCH_NS ? CB_BATCH_NS : 0;
    look->resume_ns = now_ns + (uint64_t)(enough - bucket + 1) * 100 / look->order.core_percent;
    return CB_WAIT_BUCKET;
}

/* ---- waiting ---- */

static void futex_sleep_until(const uint32_t *word, uint32_t value, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                             .tv_nsec = (long)(until_ns % 1000000000u)};
    int saved = errno;
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, &until, NULL, FUTEX_BITSET_MATCH_ANY);
    errno = saved;
}

/* The next moment at which to poll the fences: shortly before one is expected, then at growing intervals. */
static uint64_t next_poll_ns(uint32_t device, uint64_t now_ns, uint64_t poll_ns)
{
    uint64_t expected = cb_fences_expected(device);
    if (expected > now_ns + CB_POLL_MIN_NS + CB_LEAD_NS) {
        uint64_t at = expected - CB_LEAD_NS;
        return at < now_ns + CB_DEMAND_NS ? at : now_ns + CB_DEMAND_NS;
    }
    return now_ns + poll_ns;
}

/* Return true if the work in flight should have been done long ago and has not progressed since `moved_ns`. */
static bool inflight_is_stuck(const struct cb_device_view *view, const struct cb_launch *launch,
                              uint64_t moved_ns, uint64_t now_ns)
{
    uint64_t limit = CB_STUCK_NS;
    if (LOAD(&launch->estimate->mean_ns) == 0 && LOAD(&launch->estimate->pending) > 0)
        limit = CB_UNMEASURED_NS;
    if (now_ns - moved_ns <= limit) return false;
    return card_remaining_ns(view, LOAD(&view->usage->inflight_ns),
                             now_ns > CB_STUCK_NS ? now_ns - CB_STUCK_NS : 0) == 0;
}

void cb_gate_wait(const struct cb_device_view *view, struct cb_launch *launch, struct cb_look *look,
                  enum cb_verdict verdict)
{
    uint64_t began = cb_clock_ns(), now = began, moved = began, expired = began, seen = look->inflight_ns,
             poll = CB_POLL_MIN_NS;
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    cb_compute_waiting(view->index, 1);
    while (verdict != CB_PASS) {
        uint64_t until = now + CB_DEMAND_NS;
        if (verdict == CB_WAIT_WINDOW && look->window.start < until + CB_LEAD_NS && look->window.start > now)
            until = look->window.start - CB_LEAD_NS;
        else if (verdict == CB_WAIT_WINDOW && look->window.start <= now && look->window.end < until)
            until = look->window.end; /* too late for this window */
        else if (verdict == CB_WAIT_BUCKET && look->resume_ns < until)
            until = look->resume_ns;
        /* nothing of this process to poll before then */
        else if (verdict == CB_WAIT_INFLIGHT && look->resume_ns > now + CB_POLL_MIN_NS &&
                 LOAD(view->own_inflight_ns) == 0) {
            until = look->resume_ns < now + CB_POLL_MAX_NS ? look->resume_ns : now + CB_POLL_MAX_NS;
        } else if (verdict == CB_WAIT_INFLIGHT) {
            until = next_poll_ns(view->index, now, poll);
            if (until == now + poll)
                poll = poll + poll / 4 < CB_POLL_MAX_NS ? poll + poll / 4 : CB_POLL_MAX_NS;
        }
        futex_sleep_until(&view->limits->word, look->order.word, until);
        if (cb_fences_poll(view->index, 2)) poll = CB_POLL_MIN_NS;
        now = cb_clock_ns();
        STORE(&view->usage->demand_ns, now);
        if (LOAD(&view->usage->inflight_ns) != seen || verdict != CB_WAIT_INFLIGHT) {
            seen = LOAD(&view->usage->inflight_ns);
            moved = now;
        }
        if (verdict == CB_WAIT_INFLIGHT && now - expired > CB_EXPIRE_NS) {
            expired = now;
            cb_streams_flush(now - CB_TAIL_NS);
            cb_compute_expire_siblings(view->index, now);
        }
        launch->cost_ns = cb_launch_cost(view, launch); /* more may be known meanwhile */
        verdict = cb_gate_look(view, launch, true, inflight_is_stuck(view, launch, moved, now), now, look);
    }
    cb_compute_waiting(view->index, -1);
    ADD(&view->usage->throttled_ns, now - began);
    if (slack > 0) prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
}
