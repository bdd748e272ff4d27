/*
 * Benchmark and test of the compute limiter alone, with a minimal driver: one device in this process that runs
 * launches one after the other. Each command prints one line of "name value" pairs. Compiled together with
 * native/shim/compute*.c.
 *
 * Time is virtual: the linker replaces clock_gettime, usleep and syscall (--wrap) by the functions below. The
 * clock stands still while code runs, reading it takes READ_NS, and a sleeping thread wakes WAKE_NS late.
 * Processes that take part with join_clock() run one at a time: a process that sleeps hands over to the one
 * that wakes first. Threads of one process share its place; a thread that sleeps advances the clock for all of
 * them.
 */
#define _GNU_SOURCE
#include "shim/compute.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MS         1000000ull
#define READ_NS    100u
#define WAKE_NS    20000u
#define RECHECK_NS 200000u /* longest delay after which a sleeper at a futex sees that its word has changed */
#define PLACES     2

static uint64_t free_at_ns, busy_ns, outside_ns;
static unsigned creates, records, queries, capturing;
static uint64_t window_start, window_length, window_period;

/* ---- virtual time ---- */

struct virtual_clock {
    uint64_t now_ns;
    struct {
        bool present;
        uint64_t wake_ns;
        sem_t turn;
    } place[PLACES];
};

static struct virtual_clock *virtual_clock; /* shared with forked children */
static int place;

static void move_clock(uint64_t to_ns)
{
    uint64_t now = __atomic_load_n(&virtual_clock->now_ns, __ATOMIC_RELAXED);
    while (now < to_ns && !__atomic_compare_exchange_n(&virtual_clock->now_ns, &now, to_ns, false,
                                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static int hand_on(void)
{
    int next = -1;
    for (int i = 0; i < PLACES; i++)
        if (virtual_clock->place[i].present &&
            (next < 0 || virtual_clock->place[i].wake_ns < virtual_clock->place[next].wake_ns))
            next = i;
    if (next < 0) return next;
    move_clock(virtual_clock->place[next].wake_ns);
    if (next != place) sem_post(&virtual_clock->place[next].turn);
    return next;
}

static void await_turn(void)
{
    while (sem_wait(&virtual_clock->place[place].turn) != 0)
        ;
}

static void sleep_until(uint64_t at_ns)
{
    virtual_clock->place[place].wake_ns = at_ns + WAKE_NS;
    if (hand_on() != place) await_turn();
}

/*
 * Call it before fork(): the child that calls join_clock() with this place first runs when the caller sleeps.
 */
static void expect_at(int joining)
{
    virtual_clock->place[joining].wake_ns = 0;
    virtual_clock->place[joining].present = true;
}

static void join_clock(int at)
{
    place = at;
    await_turn();
}

static void leave_clock(void)
{
    virtual_clock->place[place].present = false;
    hand_on();
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    uint64_t now = __atomic_add_fetch(&virtual_clock->now_ns, READ_NS, __ATOMIC_RELAXED);
    *t = (struct timespec){.tv_sec = (time_t)(now / (1000 * MS)), .tv_nsec = (long)(now % (1000 * MS))};
    return 0;
}

int __wrap_usleep(useconds_t us)
{
    sleep_until(virtual_clock->now_ns + us * 1000ull);
    return 0;
}

/* The limiter's only system call: a wait at a futex until an absolute time. */
long __wrap_syscall(long number, ...)
{
    va_list list;
    va_start(list, number);
    const uint32_t *word = va_arg(list, const uint32_t *);
    int operation = va_arg(list, int);
    uint32_t value = va_arg(list, uint32_t);
    const struct timespec *t = va_arg(list, const struct timespec *);
    va_end(list);
    if (number != SYS_futex || operation != FUTEX_WAIT_BITSET) abort();
    uint64_t until = (uint64_t)t->tv_sec * 1000 * MS + (uint64_t)t->tv_nsec, now;
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) {
        now = __atomic_load_n(&virtual_clock->now_ns, __ATOMIC_RELAXED);
        if (now >= until) {
            errno = ETIMEDOUT;
            return -1;
        }
        sleep_until(until < now + RECHECK_NS ? until : now + RECHECK_NS);
    }
    return 0;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * MS + (uint64_t)now.tv_nsec;
}

static void *shared(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

static void make_clock(void)
{
    virtual_clock = shared(sizeof(*virtual_clock));
    virtual_clock->now_ns = 1000 * 1000 * MS;
    virtual_clock->place[0].present = true;
    for (int i = 0; i < PLACES; i++)
        sem_init(&virtual_clock->place[i].turn, 1, 0);
}

/* ---- the driver ---- */

struct event {
    uint64_t at_ns;
};

static CUresult fake_context(CUcontext *context)
{
    *context = (CUcontext)0x1000;
    return CUDA_SUCCESS;
}

static CUresult fake_create(CUevent *event, unsigned int flags)
{
    (void)flags;
    creates++;
    *event = (CUevent)calloc(1, sizeof(struct event));
    return CUDA_SUCCESS;
}

static CUresult fake_destroy(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

/* Streams 1 to 4 run side by side, all others one after the other. */
static uint64_t *free_at(CUstream stream)
{
    static uint64_t side[5];
    uintptr_t number = (uintptr_t)stream;
    return number >= 1 && number <= 4 ? &side[number] : &free_at_ns;
}

static CUresult fake_record(CUevent event, CUstream stream)
{
    uint64_t now = now_ns(), idle = *free_at(stream);
    records++;
    ((struct event *)event)->at_ns = now > idle ? now : idle;
    return CUDA_SUCCESS;
}

static CUresult fake_query(CUevent event)
{
    queries++;
    return now_ns() >= ((struct event *)event)->at_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult fake_elapsed(float *ms, CUevent start, CUevent end)
{
    *ms = (float)((double)(((struct event *)end)->at_ns - ((struct event *)start)->at_ns) / 1e6);
    return CUDA_SUCCESS;
}

static CUresult fake_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    *status = capturing && stream == (CUstream)0x2000 ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                      : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult fake_launch(uint64_t duration_ns)
{
    uint64_t now = now_ns(), start = now > free_at_ns ? now : free_at_ns;
    free_at_ns = start + duration_ns;
    busy_ns += duration_ns;
    if (window_period != 0) {
        uint64_t at = (start - window_start) % window_period, end = at + duration_ns;
        if (end > window_length) outside_ns += at >= window_length ? duration_ns : end - window_length;
    }
    return CUDA_SUCCESS;
}

static const struct cb_compute_driver driver = {.ctx_get_current = fake_context,
                                                .event_create = fake_create,
                                                .event_destroy = fake_destroy,
                                                .event_record = fake_record,
                                                .event_query = fake_query,
                                                .event_elapsed_time = fake_elapsed,
                                                .stream_is_capturing = fake_capturing};
static struct cb_limits limits = {.device_count = 1};
static struct cb_usage *usage; /* shared with forked children, as the file is */
static struct cb_limits_device *const device = &limits.device[0];
static struct cb_usage_device *used;

static void start(uint32_t policy, uint32_t gate, uint32_t core_percent)
{
    device->policy = policy;
    device->gate = gate;
    device->core_percent = core_percent;
    usage->proc[0].state = CB_PROC_LIVE;
    cb_compute_init(&limits, usage, &usage->proc[0], &driver);
}

static void launch(uint64_t key, uint64_t duration_ns)
{
    struct cb_launch state;
    cb_launch_begin(&state, key, NULL, false);
    cb_launch_end(&state, fake_launch(duration_ns));
}

static void run(double seconds, uint64_t duration_ns, uint64_t jitter)
{
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
    for (uint64_t i = 0; now_ns() < end; i++)
        launch(cb_kernel_key("k", 1, 1, 1, 1, 1, 1), duration_ns + (jitter ? i * 7919 % jitter : 0));
    while (now_ns() < free_at_ns)
        usleep(100);
}

static void rate(int argc, char **argv)
{
    double seconds = atof(argv[4]);
    start(CB_POLICY_FIXED, CB_GATE_RATE, (uint32_t)atoi(argv[2]));
    uint64_t jitter = argc > 5 ? strtoull(argv[5], NULL, 10) * 1000 : 0;
    run(0.2, strtoull(argv[3], NULL, 10) * 1000, jitter);
    uint64_t began = now_ns(), before = busy_ns, charged = used->charged_ns;
    run(seconds, strtoull(argv[3], NULL, 10) * 1000, jitter);
    printf("share %.4f charged %.4f launches %llu records %u waiting %u\n",
           (double)(busy_ns - before) / (double)(now_ns() - began),
           (double)(used->charged_ns - charged) / (double)(busy_ns - before),
           (unsigned long long)used->launch_count, records, used->waiting_count);
}

static void turn(char **argv)
{
    uint64_t kernel_ns = strtoull(argv[4], NULL, 10) * 1000;
    limits.heartbeat_ns = now_ns() + 3600 * 1000 * MS;
    window_start = now_ns() + 5 * MS;
    window_length = strtoull(argv[2], NULL, 10) * MS;
    window_period = strtoull(argv[3], NULL, 10) * MS;
    device->plan = (struct cb_plan){.from_ns = window_start,
                                    .start_ns = window_start,
                                    .end_ns = window_start + window_length,
                                    .period_ns = window_period};
    start(CB_POLICY_FIXED, CB_GATE_TURN, 30);
    run(0.1, kernel_ns, 0);
    uint64_t began = now_ns();
    busy_ns = outside_ns = 0;
    run(0.6, kernel_ns, 0);
    printf("share %.4f outside %.4f\n", (double)busy_ns / (double)(now_ns() - began),
           (double)outside_ns / (double)busy_ns);
}

static void dead_agent(void)
{
    limits.heartbeat_ns = now_ns();
    device->plan = (struct cb_plan){.from_ns = 0}; /* no window */
    start(CB_POLICY_FIXED, CB_GATE_TURN, 30);
    uint64_t began = now_ns();
    launch(11, 1000);
    uint64_t blocked = now_ns() - began;
    began = now_ns();
    uint64_t before = busy_ns;
    run(0.6, MS, 0);
    printf("blocked_ms %.1f share %.4f\n", (double)blocked / 1e6,
           (double)(busy_ns - before) / (double)(now_ns() - began));
}

static void capture(void)
{
    start(CB_POLICY_FIXED, CB_GATE_RATE, 10);
    capturing = 1;
    cb_compute_capture_begun();
    for (int i = 0; i < 5000; i++) {
        struct cb_launch state;
        cb_launch_begin(&state, cb_kernel_key("c", 1, 1, 1, 1, 1, 1), (CUstream)0x2000, false);
        cb_launch_end(&state, CUDA_SUCCESS);
    }
    unsigned during = creates + records + queries;
    uint64_t charged = used->charged_ns;
    capturing = 0;
    cb_compute_capture_ended();
    launch(7, MS);
    printf("during %u charged %llu after %u\n", during, (unsigned long long)charged, records);
}

static void failure(void)
{
    start(CB_POLICY_FIXED, CB_GATE_RATE, 30);
    for (int i = 0; i < 1000; i++) {
        struct cb_launch state;
        cb_launch_begin(&state, cb_kernel_key("f", (unsigned)i % 3, 1, 1, 1, 1, 1), NULL, false);
        cb_launch_end(&state, CUDA_ERROR_INVALID_VALUE);
    }
    printf("charged %llu inflight %llu launches %llu own %llu\n", (unsigned long long)used->charged_ns,
           (unsigned long long)used->inflight_ns, (unsigned long long)used->launch_count,
           (unsigned long long)usage->proc[0].inflight_ns[0]);
}

static void synchronised(void)
{
    start(CB_POLICY_BURST, CB_GATE_OPEN, 30);
    for (int i = 0; i < 20; i++)
        launch(cb_kernel_key("s", 1, 1, 1, 1, 1, 1), 20000);
    uint64_t mark = cb_compute_mark(), before = used->inflight_ns;
    while (now_ns() < free_at_ns + 1000000)
        usleep(100);
    cb_compute_synchronized(mark, NULL, false, true);
    printf("before %llu after %llu own %llu\n", (unsigned long long)before,
           (unsigned long long)used->inflight_ns, (unsigned long long)usage->proc[0].inflight_ns[0]);
}

static void dead_sibling(void)
{
    start(CB_POLICY_BURST, CB_GATE_OPEN, 30);
    used->inflight_ns = 500 * MS; /* left by a process that was killed and not reaped */
    uint64_t began = now_ns();
    launch(3, MS);
    launch(3, MS);
    printf("blocked_ms %.1f\n", (double)(now_ns() - began) / 1e6);
}

static void forked(void)
{
    start(CB_POLICY_BURST, CB_GATE_OPEN, 30);
    for (int i = 0; i < 100; i++)
        launch(5, 100000);
    if (fork() == 0) {
        usage->proc[1].state = CB_PROC_LIVE;
        cb_compute_after_fork(&usage->proc[1]);
        unsigned before = creates;
        for (int i = 0; i < 100; i++)
            launch(5, 100000);
        printf("fresh_events %d own %d\n", creates > before, usage->proc[1].inflight_ns[0] > 0);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
}

static uint64_t advance_key(void)
{
    return cb_kernel_key("a", 1, 1, 1, 1, 1, 1);
}

/* Known kernels of 2 us, with a wait after every few of them so that nothing piles up. */
static void *quick(void *count)
{
    for (long i = 0; i < (long)count; i++) {
        launch(advance_key(), 2000);
        if (i % 50 == 49)
            while (now_ns() < free_at_ns)
                ;
    }
    return NULL;
}

/* Launches made in advance are charged exactly once they are accounted for: at a wait, at a thread's end. */
static void advance(void)
{
    const long count = 20000;
    pthread_t thread;
    start(CB_POLICY_BURST, CB_GATE_OPEN, 30);
    quick((void *)count);
    uint64_t looked = used->launch_count;
    uint64_t mark = cb_compute_mark();
    while (now_ns() < free_at_ns)
        ;
    cb_compute_synchronized(mark, NULL, false, true);
    printf("looked %llu launches %llu charged %.4f ", (unsigned long long)looked,
           (unsigned long long)used->launch_count, (double)used->charged_ns / (double)busy_ns);
    pthread_create(&thread, NULL, quick, (void *)1017l);
    pthread_join(thread, NULL);
    printf("ended %llu inflight %d\n", (unsigned long long)used->launch_count, used->inflight_ns > 0);
}

/* Number of launches that pass after the agent has closed the gate of a thread that could launch in advance. */
static void recalled(void)
{
    start(CB_POLICY_BURST, CB_GATE_OPEN, 30);
    quick((void *)2000l);
    unsigned granted = cb_advance.launches_left;
    device->gate = CB_GATE_RATE;
    device->core_percent = 1;
    device->word += 2;
    used->bucket_ns = -200 * (int64_t)MS;
    used->bucket_time_ns = now_ns();
    uint64_t began = now_ns();
    launch(advance_key(), 2000);
    printf("granted %u waited_ms %.1f\n", granted, (double)(now_ns() - began) / 1e6);
}

/* A process launches a kernel of 60 ms that was never measured; then a sibling launches one of its shape. */
static void siblings(void)
{
    static _Alignas(8) char one, other;
    start(CB_POLICY_BURST, CB_GATE_OPEN, 30);
    expect_at(1);
    if (fork() == 0) {
        join_clock(1);
        usage->proc[1].state = CB_PROC_LIVE;
        cb_compute_after_fork(&usage->proc[1]);
        for (int i = 0; i < 2; i++) { /* the second one waits for the result of the first */
            struct cb_launch state;
            cb_launch_begin(&state, cb_kernel_key(&one, 7, 1, 1, 64, 1, 1), NULL, false);
            cb_launch_end(&state, fake_launch(60 * MS));
        }
        leave_clock();
        _exit(0);
    }
    usleep(20000);
    uint64_t began = now_ns();
    struct cb_launch state;
    cb_launch_begin(&state, cb_kernel_key(&other, 7, 1, 1, 64, 1, 1), NULL, false);
    printf("waited_ms %.1f cost_ms %.1f\n", (double)(now_ns() - began) / 1e6, (double)state.cost_ns / 1e6);
    cb_launch_end(&state, CUDA_ERROR_INVALID_VALUE);
    leave_clock();
    wait(NULL);
}

/* Kernels of 2 ms in four streams that run side by side. */
static void side_by_side(void)
{
    start(CB_POLICY_BURST, CB_GATE_OPEN, 30);
    uint64_t began = 0, charged = 0, launches = 0, together = 0, until = 0, end = now_ns() + 800 * MS;
    while (now_ns() < end) {
        if (began == 0 && now_ns() > end - 600 * MS) {
            began = now_ns();
            charged = used->charged_ns;
            launches = together = 0;
        }
        for (uintptr_t number = 1; number <= 4; number++) {
            struct cb_launch state;
            CUstream stream = (CUstream)number;
            if (*free_at(stream) > now_ns() + MS) continue; /* one under way in each */
            cb_launch_begin(&state, cb_kernel_key("p", 9, 1, 1, 1, 1, 1), stream, false);
            uint64_t now = now_ns(), *idle = free_at(stream);
            uint64_t from = now > *idle ? now : *idle;
            *idle = from + 2 * MS;
            if (*idle > until) together += *idle - (from > until ? from : until);
            if (*idle > until) until = *idle;
            cb_launch_end(&state, CUDA_SUCCESS);
            launches++;
        }
        usleep(100);
    }
    printf("charged %.3f work %.3f\n", (double)(used->charged_ns - charged) / (double)together,
           (double)(launches * 2 * MS) / (double)together);
}

/* Two threads launch at once: each launch is checked, and their counts stay exact. */
static void together(void)
{
    pthread_t one, two;
    start(CB_POLICY_FIXED, CB_GATE_RATE, 90);
    pthread_create(&one, NULL, quick, (void *)3000l);
    pthread_create(&two, NULL, quick, (void *)3000l);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    printf("launches %llu\n", (unsigned long long)used->launch_count);
}

int main(int argc, char **argv)
{
    make_clock();
    usage = shared(sizeof(*usage));
    used = &usage->device[0];
    const char *command = argc > 1 ? argv[1] : "";
    if (strcmp(command, "rate") == 0)
        rate(argc, argv);
    else if (strcmp(command, "turn") == 0)
        turn(argv);
    else if (strcmp(command, "dead-agent") == 0)
        dead_agent();
    else if (strcmp(command, "capture") == 0)
        capture();
    else if (strcmp(command, "failure") == 0)
        failure();
    else if (strcmp(command, "synchronised") == 0)
        synchronised();
    else if (strcmp(command, "dead-sibling") == 0)
        dead_sibling();
    else if (strcmp(command, "forked") == 0)
        forked();
    else if (strcmp(command, "advance") == 0)
        advance();
    else if (strcmp(command, "recalled") == 0)
        recalled();
    else if (strcmp(command, "together") == 0)
        together();
    else if (strcmp(command, "siblings") == 0)
        siblings();
    else if (strcmp(command, "side-by-side") == 0)
        side_by_side();
    else
        return 64;
    return 0;
}
