/*
 * Virtual time for programs that run together: a library to be preloaded into them.
 *
 * CLOCK_MONOTONIC stands still while a member computes, and one member runs at a time: a member that sleeps
 * hands over to the one that wakes first, and the clock advances to that moment. So measurements depend neither
 * on the speed of the machine nor on its other load. Reading the clock takes READ_NS, so that a loop that waits
 * for it ends, and a sleeping member runs WAKE_NS after the requested time.
 *
 * VIRTUAL_TIME names the file that they share (struct world; bench/_virtual.py makes it and is a member
 * itself), VIRTUAL_TIME_PLACE the place of this process in it, or -1 for a process that only reads the clock
 * and ends soon. A member has one thread that sleeps. CLOCK_REALTIME advances with CLOCK_MONOTONIC. A stopped
 * member does not run until it is continued.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MEMBERS_MAX 64
#define READ_NS     100u
#define WAKE_NS     20000u
#define RECHECK_NS  200000u /* longest delay after which a sleeper at a futex sees that it was woken */

struct world {
    uint64_t now_ns, realtime_offset_ns;
    struct {
        uint32_t present, running; /* running: a futex word */
        uint64_t wake_ns;
        uint64_t stopped;
    } member[MEMBERS_MAX];
};

static struct world *world;
static int self = -1;

static long raw(long number, const long *a)
{
    long result;
    register long r10 __asm__("r10") = a[3];
    register long r8 __asm__("r8") = a[4];
    register long r9 __asm__("r9") = a[5];
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static void futex(uint32_t *word, long operation, long value)
{
    (void)raw(SYS_futex, (const long[]){(long)word, operation, value, 0, 0, 0});
}

static void wait_for_turn(void)
{
    while (!__atomic_load_n(&world->member[self].running, __ATOMIC_ACQUIRE))
        futex(&world->member[self].running, FUTEX_WAIT, 0);
}

static void hand_on(void)
{
    int next = -1;
    for (int i = 0; i < MEMBERS_MAX; i++)
        if (__atomic_load_n(&world->member[i].present, __ATOMIC_ACQUIRE) && !world->member[i].stopped &&
            (next < 0 || world->member[i].wake_ns < world->member[next].wake_ns))
            next = i;
    if (next < 0) return;
    if (world->member[next].wake_ns > world->now_ns) world->now_ns = world->member[next].wake_ns;
    __atomic_store_n(&world->member[next].running, 1, __ATOMIC_RELEASE);
    if (next != self) futex(&world->member[next].running, FUTEX_WAKE, 1);
}

static void sleep_until(uint64_t at_ns)
{
    world->member[self].wake_ns = at_ns > world->now_ns ? at_ns + WAKE_NS : world->now_ns;
    world->member[self].running = 0;
    hand_on();
    wait_for_turn();
}

__attribute__((constructor)) static void join(void)
{
    const char *path = getenv("VIRTUAL_TIME"), *place = getenv("VIRTUAL_TIME_PLACE");
    int fd = path && place ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    struct world *mapped = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) return;
    world = mapped;
    self = atoi(place);
    if (self < 0 || self >= MEMBERS_MAX) {
        self = -1;
        return;
    }
    world->member[self].wake_ns = world->now_ns;
    __atomic_store_n(&world->member[self].present, 1, __ATOMIC_RELEASE);
    wait_for_turn();
}

__attribute__((destructor)) static void leave(void)
{
    if (world == NULL || self < 0) return;
    world->member[self].present = 0;
    hand_on();
    world = NULL;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    if (world == NULL || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME)) {
        long result = raw(SYS_clock_gettime, (const long[]){clock, (long)t, 0, 0, 0, 0});
        if (result < 0) errno = (int)-result;
        return result < 0 ? -1 : 0;
    }
    if (self >= 0) world->now_ns += READ_NS;
    uint64_t now = world->now_ns + (clock == CLOCK_REALTIME ? world->realtime_offset_ns : 0);
    t->tv_sec = (time_t)(now / 1000000000u);
    t->tv_nsec = (long)(now % 1000000000u);
    return 0;
}

static uint64_t ns_of(const struct timespec *t)
{
    return (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *t, struct timespec *left)
{
    if (world == NULL || self < 0)
        return (int)-raw(SYS_clock_nanosleep, (const long[]){clock, flags, (long)t, (long)left, 0, 0});
    sleep_until(flags & TIMER_ABSTIME ? ns_of(t) : world->now_ns + ns_of(t));
    return 0;
}

int nanosleep(const struct timespec *t, struct timespec *left)
{
    errno = clock_nanosleep(CLOCK_MONOTONIC, 0, t, left);
    return errno ? -1 : 0;
}

int usleep(useconds_t us)
{
    struct timespec t = {.tv_sec = us / 1000000u, .tv_nsec = (long)(us % 1000000u) * 1000};
    return nanosleep(&t, NULL);
}

/*
 * A wait at a futex until an absolute time, as the limiter makes it; all other calls are passed to the kernel.
 */
long syscall(long number, ...)
{
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (world != NULL && self >= 0 && number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET &&
        a[3] != 0) {
        uint64_t until = ns_of((const struct timespec *)a[3]);
        const uint32_t *word = (const uint32_t *)a[0];
        while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == (uint32_t)a[2]) {
            if (world->now_ns >= until) {
                errno = ETIMEDOUT;
                return -1;
            }
            sleep_until(until < world->now_ns + RECHECK_NS ? until : world->now_ns + RECHECK_NS);
        }
        return 0;
    }
    long result = raw(number, a);
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}
