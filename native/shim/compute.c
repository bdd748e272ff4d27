/*
 * The gate: whether a launch may go to the card now, and how it waits when it may not.
 *
 * Theory of operation. Under CB_GATE_RATE the container owns one bucket of GPU nanoseconds in the usage page.
 * Whoever finds it empty fills it by (time since the last filling) x share, elected by a compare-and-swap on
 * that time; it holds at most CB_BURST_NS, and a launch may drive it below zero, so a long kernel runs and is
 * paid off afterwards. Launches that wait resume when a small batch fits, which saves wake-ups and keeps the
 * card's queue from running dry. Under CB_GATE_TURN launches go out inside the windows of the plan, as long
 * as at least half of the launch is expected to run before the window closes: over- and underruns cancel out,
 * and the agent balances what is left. CB_GATE_OPEN lets launches pass, but keeps count and bounds the work
 * in flight, so that the card can be handed back.
 *
 * A dead agent neither stops a tenant nor frees it: turns, and time that was only lent, fall back to the
 * rate.
 */
#include "shim/compute.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/compute_measure.h"
#include "shim/elf.h"
#include "shim/spin.h"

#define CB_BURST_NS     20000000 /* GPU time saved up at most */
#define CB_BATCH_NS     1000000  /* a waiting launch resumes when this much is there */
#define CB_FILL_NS      20000u   /* not worth a compare-and-swap before */
#define CB_HEARTBEAT_NS 200000000u
#define CB_LENT_NS      1000000000u /* without a sign of life for so long, idle time is no longer lent */
#define CB_LEAD_NS      60000u      /* waking up takes about so long */
#define CB_LOOK_NS      50000000u   /* a launch that waits shows itself at least so often */
#define CB_POLL_MIN_NS  30000u
#define CB_POLL_MAX_NS  1000000u
#define CB_STUCK_NS     1000000000u /* work in flight that does not move for so long holds nobody back */
#define CB_TAIL_NS      50000000u   /* launches without a fence are done after so long a silence */
#define CB_EXPIRE_NS    10000000u

#define LOAD(p)     __atomic_load_n((p), __ATOMIC_RELAXED)
#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define ADD(p, v)   __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)

const struct cb_limits *cb_compute_limits;
static struct cb_usage *usage_page;
static struct cb_usage_proc *own;
static uint64_t own_launches[CB_DEVICES_MAX];

struct cb_device_view cb_compute_view(uint32_t device)
{
    return (struct cb_device_view){.limits = &cb_compute_limits->device[device],
                                   .usage = &usage_page->device[device],
                                   .own_inflight_ns = &own->inflight_ns[device],
                                   .own_until_ns = &own->inflight_until_ns[device],
                                   .index = device};
}

void cb_compute_init(const struct cb_limits *limits, struct cb_usage *usage, struct cb_usage_proc *proc,
                     const struct cb_compute_driver *driver)
{
    cb_compute_driver = *driver;
    usage_page = usage;
    own = proc;
    __atomic_store_n(&cb_compute_limits, limits, __ATOMIC_RELEASE);
}

void cb_compute_after_fork(struct cb_usage_proc *proc)
{
    own = proc;
    memset(&cb_advance, 0, sizeof(cb_advance)); /* the parent's launches are the parent's to book */
    cb_measure_reset();
}

uint32_t cb_compute_sharers(uint32_t device)
{
    uint32_t count = LOAD(&cb_compute_limits->device[device].neighbours);
    if (LOAD(&usage_page->device[device].launch_count) == LOAD(&own_launches[device]))
        return count + 1; /* no siblings */
    for (uint32_t i = 0; i < CB_PROCS_MAX; i++) {
        const struct cb_usage_proc *proc = &usage_page->proc[i];
        /* not inflight_ns: others drop that when it takes too long */
        count += LOAD(&proc->state) == CB_PROC_LIVE && LOAD(&proc->inflight_until_ns[device]) != 0;
    }
    return count > 0 ? count : 1;
}

/* ---- what the agent says ---- */

enum verdict { PASS, WAIT_INFLIGHT, WAIT_BUCKET, WAIT_WINDOW };

/* The agent's word on a device, read as one. */
struct order {
    uint32_t word, gate, core_percent, neighbours;
    struct cb_plan plan, previous;
};

static void read_order(const struct cb_limits_device *device, uint64_t now_ns, struct order *order)
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

struct window {
    uint64_t start, end;
};

static struct window plan_window(const struct cb_plan *plan, uint64_t now_ns)
{
    const struct window never = {UINT64_MAX, UINT64_MAX};
    if (plan->end_ns <= plan->start_ns) return never;
    if (now_ns < plan->end_ns) return (struct window){plan->start_ns, plan->end_ns};
    if (plan->period_ns == 0) return never;
    uint64_t skip = (now_ns - plan->start_ns) / plan->period_ns * plan->period_ns;
    struct window window = {plan->start_ns + skip, plan->end_ns + skip};
    if (now_ns >= window.end) {
        window.start += plan->period_ns;
        window.end += plan->period_ns;
    }
    return window;
}

/* The window that is open now, or else the next one. */
static struct window next_window(const struct order *order, uint64_t now_ns)
{
    if (now_ns < order->plan.from_ns) {
        struct window window = plan_window(&order->previous, now_ns);
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

static bool bucket_take(struct cb_usage_device *usage, uint64_t cost_ns)
{
    if (ADD(&usage->bucket_ns, -(int64_t)cost_ns) > 0) return true;
    ADD(&usage->bucket_ns, (int64_t)cost_ns);
    return false;
}

/* ---- one look at the gate ---- */

struct look {
    struct order order;
    uint64_t heartbeat_ns;
    struct window window;
    uint64_t inflight_ns;
    uint64_t resume_ns; /* when a wait for the bucket is over */
};

/* What the card still has to do for this container, by the clock: fences tell it later. */
static uint64_t remaining(const struct cb_device_view *view, uint64_t inflight_ns, uint64_t now_ns)
{
    uint64_t until = LOAD(&view->usage->busy_until_ns);
    uint64_t left = until > now_ns ? until - now_ns : 0;
    return left < inflight_ns ? left : inflight_ns;
}

/* A little work queued behind what runs keeps the card busy; more would only make others wait. */
static bool inflight_allows(const struct cb_launch *launch, uint64_t inflight_ns, uint64_t left_ns)
{
    if (LOAD(&launch->estimate->mean_ns) == 0 && LOAD(&launch->estimate->pending) >= CB_UNKNOWN_PENDING)
        return false;
    if (inflight_ns >= CB_INFLIGHT_NS_MAX) /* estimates may be wrong: never more than one long kernel ahead */
        return inflight_ns <= launch->cost_ns + launch->cost_ns / 8 && left_ns < CB_INFLIGHT_NS / 2;
    return left_ns < CB_INFLIGHT_NS;
}

static enum verdict look_at_gate(const struct cb_device_view *view, const struct cb_launch *launch,
                                 bool waited, bool stuck, uint64_t now_ns, struct look *look)
{
    look->heartbeat_ns = LOAD(&cb_compute_limits->heartbeat_ns);
    read_order(view->limits, now_ns, &look->order);
    look->inflight_ns = LOAD(&view->usage->inflight_ns);
    uint64_t ahead = remaining(view, look->inflight_ns, now_ns);
    if (!stuck && !inflight_allows(launch, look->inflight_ns, ahead)) return WAIT_INFLIGHT;
    if (look->order.gate == CB_GATE_TURN) {
        look->window = next_window(&look->order, now_ns);
        if (now_ns + CB_LEAD_NS < look->window.start) return WAIT_WINDOW;
        uint64_t left = look->window.end > now_ns ? look->window.end - now_ns : 0;
        if (ahead + launch->cost_ns / 2 <= left || stuck) return PASS;
        /* Longer than any turn of ours will be: at the beginning of one, for there is no better moment. */
        uint64_t length = look->window.end - look->window.start;
        if (ahead == 0 && launch->cost_ns > length && left > length / 2) return PASS;
        return ahead > 0 ? WAIT_INFLIGHT : WAIT_WINDOW;
    }
    if (look->order.gate != CB_GATE_RATE || look->order.core_percent >= 100) return PASS;
    int64_t bucket = LOAD(&view->usage->bucket_ns);
    int64_t enough = waited && launch->cost_ns < CB_BATCH_NS ? CB_BATCH_NS : 0;
    if (bucket <= enough) bucket = bucket_fill(view->usage, look->order.core_percent, now_ns);
    if (bucket > enough && bucket_take(view->usage, launch->cost_ns)) return PASS;
    enough = launch->cost_ns < CB_BATCH_NS ? CB_BATCH_NS : 0;
    look->resume_ns = now_ns + (uint64_t)(enough - bucket + 1) * 100 / look->order.core_percent;
    return WAIT_BUCKET;
}

/* ---- waiting ---- */

static void sleep_until(const uint32_t *word, uint32_t value, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                             .tv_nsec = (long)(until_ns % 1000000000u)};
    int saved = errno;
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, &until, NULL, FUTEX_BITSET_MATCH_ANY);
    errno = saved;
}

/* The next moment worth a look at the fences: shortly before one is expected, then more and more rarely. */
static uint64_t poll_time(uint32_t device, uint64_t now_ns, uint64_t poll_ns)
{
    uint64_t expected = cb_fences_expected(device);
    if (expected > now_ns + CB_POLL_MIN_NS + CB_LEAD_NS) {
        uint64_t at = expected - CB_LEAD_NS;
        return at < now_ns + CB_LOOK_NS ? at : now_ns + CB_LOOK_NS;
    }
    return now_ns + poll_ns;
}

/*
 * What siblings have in flight leaves the container's book when they look at their fences. One that turned to
 * other work does not look, and one that was killed never will: what should have been done long ago is
 * dropped for them.
 */
static void expire_siblings(const struct cb_device_view *view, uint64_t now_ns)
{
    uint64_t counted = LOAD(&view->usage->inflight_ns), sum = 0;
    for (uint32_t i = 0; i < CB_PROCS_MAX; i++) {
        struct cb_usage_proc *proc = &usage_page->proc[i];
        if (LOAD(&proc->state) != CB_PROC_LIVE) continue;
        uint64_t inflight = LOAD(&proc->inflight_ns[view->index]);
        uint64_t until = LOAD(&proc->inflight_until_ns[view->index]);
        if (proc != own && inflight > 0 && now_ns > until + CB_INFLIGHT_NS + 2 * inflight &&
            __atomic_compare_exchange_n(&proc->inflight_ns[view->index], &inflight, 0, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            continue;
        sum += inflight;
    }
    if (sum < counted)
        __atomic_compare_exchange_n(&view->usage->inflight_ns, &counted, sum, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
}

static void wait_at_gate(const struct cb_device_view *view, const struct cb_launch *launch, struct look *look,
                         enum verdict verdict)
{
    uint64_t began = cb_clock_ns(), now = began, moved = began, expired = began, seen = look->inflight_ns,
             poll = CB_POLL_MIN_NS;
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    ADD(&view->usage->waiting_count, 1);
    ADD(&own->waiting[view->index], 1);
    while (verdict != PASS) {
        uint64_t until = now + CB_LOOK_NS;
        if (verdict == WAIT_WINDOW && look->window.start < until + CB_LEAD_NS && look->window.start > now)
            until = look->window.start - CB_LEAD_NS;
        else if (verdict == WAIT_WINDOW && look->window.start <= now && look->window.end < until)
            until = look->window.end; /* too late for this one */
        else if (verdict == WAIT_BUCKET && look->resume_ns < until)
            until = look->resume_ns;
        else if (verdict == WAIT_INFLIGHT) {
            until = poll_time(view->index, now, poll);
            if (until == now + poll)
                poll = poll + poll / 4 < CB_POLL_MAX_NS ? poll + poll / 4 : CB_POLL_MAX_NS;
        }
        sleep_until(&view->limits->word, look->order.word, until);
        if (cb_fences_poll(view->index, 2)) poll = CB_POLL_MIN_NS;
        now = cb_clock_ns();
        STORE(&view->usage->demand_ns, now);
        if (LOAD(&view->usage->inflight_ns) != seen || verdict != WAIT_INFLIGHT) {
            seen = LOAD(&view->usage->inflight_ns);
            moved = now;
        }
        if (verdict == WAIT_INFLIGHT && now - expired > CB_EXPIRE_NS) {
            expired = now;
            cb_measure_age(now, CB_TAIL_NS);
            expire_siblings(view, now);
        }
        verdict = look_at_gate(view, launch, true, now - moved > CB_STUCK_NS, now, look);
    }
    __atomic_fetch_sub(&own->waiting[view->index], 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&view->usage->waiting_count, 1, __ATOMIC_RELAXED);
    ADD(&view->usage->throttled_ns, now - began);
    if (slack > 0) prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
}

/* ---- launches ---- */

/* Books launches of `cost_ns` together in flight; the card is expected to be done with them when? */
static uint64_t book(const struct cb_device_view *view, uint64_t cost_ns, uint64_t launches, uint64_t now_ns,
                     uint64_t *until_ns)
{
    ADD(view->own_inflight_ns, cost_ns);
    uint64_t inflight = ADD(&view->usage->inflight_ns, cost_ns); /* without these launches */
    uint64_t count = ADD(&view->usage->launch_count, launches) + launches;
    STORE(&own_launches[view->index],
          LOAD(&own_launches[view->index]) + launches); /* a lost count costs a look at the siblings */
    uint64_t until = LOAD(&view->usage->busy_until_ns), next;
    do {
        uint64_t ahead = until > now_ns ? until - now_ns : 0;
        next = now_ns + (ahead < inflight ? ahead : inflight) + cost_ns;
    } while (!__atomic_compare_exchange_n(&view->usage->busy_until_ns, &until, next, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    STORE(view->own_until_ns, next);
    *until_ns = until;
    return count;
}

static void book_stream(struct cb_stream *entry, uint64_t cost_ns, uint64_t launches)
{
    ADD(&entry->inflight_ns, cost_ns);
    ADD(&entry->unfenced_ns, cost_ns);
    STORE(&entry->unfenced_count, LOAD(&entry->unfenced_count) + launches); /* a lost count does no harm */
    STORE(&entry->launch_count, LOAD(&entry->launch_count) + launches);
}

/*
 * Launches in advance. A look at the gate costs several atomic operations on shared lines and a reading of the
 * clock, far more than the launch of a small kernel can bear. So a thread that launches quickly, and is the
 * only one of its container that does, is granted the next few launches with one look: as many as it is
 * expected to make within half a millisecond, of at most CB_ADVANCE_NS of GPU time, taken from the bucket
 * beforehand where there is one. They are booked together at its next look, wait or end. The grant dies with
 * the order that it was made under, with the agent's next sign of life, with a capture, and with a change of
 * stream. Turns and kernels that were never measured are looked at one by one. A process that is killed takes
 * at most CB_ADVANCE_NS of each of its threads along unbooked.
 */
#define CB_ADVANCE_NS       100000u
#define CB_ADVANCE_LAUNCHES 32u
#define CB_ADVANCE_SPAN_NS  500000u

__thread struct cb_advance cb_advance;

void cb_advance_book(void)
{
    struct cb_advance *advance = &cb_advance;
    uint32_t launches = advance->launches - advance->launches_left;
    uint64_t ns = advance->ns - advance->ns_left, until;
    if (advance->launches == 0) return;
    struct cb_device_view view = cb_compute_view(0);
    if (advance->taken_ns > ns) ADD(&view.usage->bucket_ns, (int64_t)(advance->taken_ns - ns));
    advance->launches = advance->launches_left = 0;
    advance->ns = advance->ns_left = advance->taken_ns = 0;
    if (launches == 0) return;
    book_stream(advance->entry, ns, launches);
    advance->seen_count += launches;
    (void)book(&view, ns, launches, advance->since_ns, &until);
}

static void at_thread_end(void *unused)
{
    (void)unused;
    cb_advance_book();
}

/* Lets at_thread_end() be called for this thread. The functions are asked for at run time because they have
 * moved from one library to another, with new versions; without them a thread takes its last few along. */
static void book_at_thread_end(void)
{
    static int (*set_specific)(unsigned, const void *);
    static unsigned end_key;
    static cb_spin making;
    static bool made;
    static __thread bool registered;
    if (registered) return;
    registered = true;
    cb_lock(&making);
    if (!made) {
        int (*create)(unsigned *, void (*)(void *)) =
            (int (*)(unsigned *, void (*)(void *)))cb_libc_symbol("pthread_key_create");
        set_specific = (int (*)(unsigned, const void *))cb_libc_symbol("pthread_setspecific");
        if (create == NULL || create(&end_key, at_thread_end) != 0) set_specific = NULL;
        made = true;
    }
    cb_unlock(&making);
    if (set_specific != NULL) (void)set_specific(end_key, &cb_advance);
}

/* After a look that let a launch pass at once. */
static void advance_grant(const struct cb_device_view *view, const struct cb_launch *launch,
                          const struct look *look, uint64_t count, uint64_t key)
{
    struct cb_advance *advance = &cb_advance;
    bool alone = count == advance->seen_count + 1;
    uint64_t passed = launch->begin_ns - advance->last_ns;
    advance->seen_count = count;
    advance->last_ns = launch->begin_ns;
    advance->known[(key >> 20) % CB_ADVANCE_KEYS].key = key;
    advance->known[(key >> 20) % CB_ADVANCE_KEYS].mean_ns = &launch->estimate->mean_ns;
    if (!alone || passed > CB_ADVANCE_SPAN_NS) {
        advance->appetite = 1;
        return;
    }
    if (advance->appetite < CB_ADVANCE_LAUNCHES) advance->appetite = 2 * advance->appetite + 1;
    /* Not always the same number: every kernel of a loop is looked at, and measured, now and then. */
    uint32_t launches = advance->appetite - (uint32_t)(count & 3u) % advance->appetite;
    uint64_t ns = CB_ADVANCE_NS;
    if (look->order.gate == CB_GATE_TURN || look->inflight_ns > CB_INFLIGHT_NS / 2 ||
        LOAD(&launch->estimate->mean_ns) == 0)
        return;
    if (look->order.gate == CB_GATE_RATE && look->order.core_percent < 100) {
        int64_t bucket = LOAD(&view->usage->bucket_ns);
        if (bucket < 8 * (int64_t)CB_ADVANCE_NS) return; /* about to be throttled */
        if (!bucket_take(view->usage, ns)) return;
        advance->taken_ns = ns;
    }
    advance->ns = advance->ns_left = ns;
    advance->since_ns = launch->begin_ns;
    advance->entry = launch->entry;
    advance->stream = cb_advance_stream(launch->stream, launch->per_thread);
    advance->word = look->order.word;
    advance->heartbeat_ns = look->heartbeat_ns;
    advance->launches = advance->launches_left = launches;
    book_at_thread_end();
}

/* Until when a sample that starts now is certain to be our own time; 0: it is not. */
static uint64_t own_time_until(const struct look *look, uint64_t cost_ns, uint64_t now_ns)
{
    if (look->order.gate == CB_GATE_TURN)
        return now_ns > look->window.start + CB_POLL_MIN_NS || cost_ns >= CB_OVERLAP_NS ? look->window.end
                                                                                        : 0;
    return look->order.neighbours == 0 ? UINT64_MAX : 0;
}

void cb_launch_begin_tracked(struct cb_launch *launch, uint64_t key, CUstream stream, bool per_thread)
{
    int device = 0;
    if (cb_compute_limits->device_count > 1) device = cb_compute_driver.current_device();
    if (device < 0 || device >= (int)CB_DEVICES_MAX || cb_device_passes(&cb_compute_limits->device[device]))
        return;
    if (cb_stream_captures(stream, per_thread)) return;

    cb_advance_book();
    struct cb_device_view view = cb_compute_view((uint32_t)device);
    uint64_t now = cb_clock_ns();
    launch->device = (uint32_t)device;
    launch->stream = stream;
    launch->per_thread = per_thread;
    launch->estimate = cb_estimate_find(key);
    launch->entry = cb_stream_find(stream, per_thread);
    launch->fence = NULL;
    uint64_t mean = LOAD(&launch->estimate->mean_ns);
    launch->cost_ns = mean != 0 ? mean : CB_UNKNOWN_NS;
    STORE(&view.usage->demand_ns, now);

    struct look look;
    if (mean >= CB_LONG_NS && LOAD(view.own_inflight_ns) > 0) cb_fences_poll((uint32_t)device, 1);
    enum verdict verdict = look_at_gate(&view, launch, false, false, now, &look);
    if (__builtin_expect(verdict == WAIT_INFLIGHT, 0) && cb_fences_poll((uint32_t)device, 2))
        verdict = look_at_gate(&view, launch, false, false, now, &look);
    if (__builtin_expect(verdict != PASS, 0)) {
        wait_at_gate(&view, launch, &look, verdict);
        now = cb_clock_ns();
    }
    launch->begin_ns = now;
    launch->tracked =
        look.order.gate == CB_GATE_RATE && look.order.core_percent < 100 ? CB_TRACKED_RATE : CB_TRACKED;
    uint64_t until, count = book(&view, launch->cost_ns, 1, now, &until);
    uint64_t ours_until = own_time_until(&look, launch->cost_ns, now);
    if (cb_sample_due(launch->estimate, until <= now || ours_until == 0, now))
        launch->fence = cb_sample_begin(launch, ours_until, look.order.word,
                                        launch->tracked == CB_TRACKED_RATE ? (uint32_t)CB_GATE_RATE
                                                                           : (uint32_t)CB_GATE_OPEN);
    if (verdict == PASS && cb_compute_limits->device_count == 1)
        advance_grant(&view, launch, &look, count, key);
}

void cb_launch_end_tracked(struct cb_launch *launch, CUresult result)
{
    if (launch->tracked == CB_TRACKED_ADVANCE) { /* it failed */
        if (cb_advance.launches != 0) cb_advance.ns_left += launch->cost_ns;
        return;
    }
    struct cb_device_view view = cb_compute_view(launch->device);
    if (__builtin_expect(result != CUDA_SUCCESS, 0)) {
        if (launch->fence != NULL) cb_fence_drop(launch->fence);
        cb_inflight_drop(launch->device, launch->cost_ns);
        ADD(&view.usage->launch_count, (uint64_t)-1);
        if (launch->tracked == CB_TRACKED_RATE) ADD(&view.usage->bucket_ns, (int64_t)launch->cost_ns);
        return;
    }
    struct cb_stream *entry = launch->entry;
    STORE(&entry->last_ns, launch->begin_ns);
    STORE(&entry->device, launch->device);
    book_stream(entry, launch->cost_ns, 1);
    cb_fence_end(launch);
}
