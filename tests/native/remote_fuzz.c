/*
 * Fuzzer of the worker with mutated recordings of programs: remote_fuzz RECORDINGS SEED SESSIONS
 *
 * Each session is a process, whose connection to the program is memory: the beginning of a recording, then
 * frames of this and other recordings, some of which are changed, dropped, repeated or exchanged. A malformed
 * frame, which ends a worker, is skipped here and the session goes on. It may end in any way except by a signal
 * or a sanitizer. Another process holds memory full of a secret; sessions try its addresses and handles, and
 * must neither read the secret nor change it. Some sessions run side by side, because most of a session is
 * waiting for the card.
 *
 * Prints the number of frames read by workers and of changed ones; exits with 1 if a session failed, after its
 * number, which as SEED repeats it alone.
 */
#define _GNU_SOURCE
#include "remote/wire/frame.h"
#include "remote/worker/channel.h"
#include "remote/worker/driver.h"
#include "remote/worker/request.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define FRAMES_MAX   1536
#define SAID_MAX     (24u << 20)
#define BEGINNING    2 /* frames of a recording that begin a session */
#define SIDE_BY_SIDE 6
#define STILL_US     250000 /* without reading a frame, then a session is stopped: a kernel may run for ever */
#define SANITIZER    99
#define LEAKED       98
#define SECRETS      16 /* pieces of memory of another session */
#define SECRET_BYTES (64u << 10)
#define LOOK_EVERY   64 /* sessions between checks that the secret is unchanged */
#define WORKED(call) ((call) == CUDA_SUCCESS)

static uint8_t *said;
static size_t said_bytes, taken;
static uint64_t state;
static struct {
    size_t end;
    bool changed;
} frame[2 * FRAMES_MAX]; /* frames to send, one by one */
static size_t frame_count, next;
static struct { /* in memory shared by the sessions and their parent */
    uint64_t frames, changed;
    uint64_t locked, ordinary; /* memory to which the driver was to copy directly */
} * read_by;
static uint8_t secret[16];
static struct {
    uint64_t handle[SECRETS + 3]; /* addresses; then a context, a stream and an event */
    int ask, told;                /* pipes */
    pid_t pid;
} other;

static uint64_t any(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t below(uint64_t bound)
{
    return any() % bound;
}

static uint64_t word_of_note(void)
{
    static const uint64_t words[] = {0, 1, 2, 7, 8, 255, 4096, 1u << 20, 0x7fffffff, 0x80000000, 0xffffffff,
                                     1ull << 32, 1ull << 47, 1ull << 63, UINT64_MAX, UINT64_MAX - 7};
    switch (below(6)) {
    case 0:
        return any();
    case 1:
        return other.handle[below(SECRETS + 3)] + below(2) * below(SECRET_BYTES);
    case 2:
        return below(2) ? 1 + below(64) : below(1u << 20);
    default:
        return words[below(sizeof words / sizeof *words)];
    }
}

/* ---- the process with the secret ---- */

static bool hold(void)
{
    CUcontext context;
    CUstream stream;
    CUevent event;
    static uint8_t filled[SECRET_BYTES];
    for (size_t i = 0; i < sizeof filled; i++)
        filled[i] = secret[i % sizeof secret];
    bool good = WORKED(CB_CALL(cuInit)(0)) && WORKED(CB_CALL(cuCtxCreate_v2)(&context, 0, 0)) &&
                WORKED(CB_CALL(cuStreamCreate)(&stream, 0)) && WORKED(CB_CALL(cuEventCreate)(&event, 0));
    for (size_t i = 0; i < SECRETS && good; i++) {
        CUdeviceptr at;
        good = WORKED(CB_CALL(cuMemAlloc_v2)(&at, sizeof filled)) &&
               WORKED(CB_CALL(cuMemcpyHtoD_v2)(at, filled, sizeof filled));
        other.handle[i] = at;
    }
    other.handle[SECRETS] = (uintptr_t)context;
    other.handle[SECRETS + 1] = (uintptr_t)stream;
    other.handle[SECRETS + 2] = (uintptr_t)event;
    return good;
}

static bool is_untouched(void)
{
    static uint8_t found[SECRET_BYTES];
    for (size_t i = 0; i < SECRETS; i++) {
        if (!WORKED(CB_CALL(cuMemcpyDtoH_v2)(found, other.handle[i], sizeof found))) return false;
        for (size_t at = 0; at < sizeof found; at++) {
            if (found[at] != secret[at % sizeof secret]) return false;
        }
    }
    return true;
}

/* Started by main, which sends it requests. */
static bool start_other(void)
{
    int ask[2], told[2];
    if (pipe(ask) < 0 || pipe(told) < 0) return false;
    other.pid = fork();
    if (other.pid == 0) {
        char word;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!hold() || write(told[1], other.handle, sizeof other.handle) != sizeof other.handle) _exit(2);
        while (read(ask[0], &word, 1) == 1) {
            word = is_untouched();
            if (write(told[1], &word, 1) != 1) break;
        }
        _exit(0);
    }
    close(ask[0]);
    close(told[1]);
    other.ask = ask[1];
    other.told = told[0];
    return other.pid > 0 && read(other.told, other.handle, sizeof other.handle) == sizeof other.handle;
}

static bool other_is_well(void)
{
    char word = 0;
    return write(other.ask, "?", 1) == 1 && read(other.told, &word, 1) == 1 && word;
}

/* ---- frames to and from a session ---- */

/* A worker ends at a malformed frame; here it goes on with the next one, unless another thread already has. */
static void session_continue(const struct cb_request *of, int code);
static void commands_read(struct cb_request *q);

#define _Noreturn
#define exit(code)  session_continue(_Generic(q, struct cb_request *: q, default: NULL), code)
#define _exit(code) return exit(code)
#include "remote/worker/session.c"
#undef _Noreturn
#undef exit
#undef _exit

static void session_continue(const struct cb_request *of, int code)
{
    struct cb_request q = {0};
    if (of && of->released) return;
    if (next == frame_count) _exit(code);
    line.from = line.to = 0;
    taken = frame[next - 1].end;
    commands_read(&q);
    free(q.answer);
}

static bool send_nowhere(struct cb_stream *s, struct iovec *parts, int count)
{
    (void)s;
    for (int i = 0; i < count; i++) {
        if (memmem(parts[i].iov_base, parts[i].iov_len, secret, sizeof secret)) _exit(LEAKED);
    }
    return true;
}

static size_t receive_said(struct cb_stream *s, void *into, size_t capacity, bool wait, bool *gone)
{
    (void)s, (void)wait;
    if (next < frame_count && taken == (next ? frame[next - 1].end : 0)) { /* one at a time, so that we know which */
        __atomic_fetch_add(&read_by->frames, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&read_by->changed, frame[next].changed, __ATOMIC_RELAXED);
        next++;
    }
    size_t there = (next ? frame[next - 1].end : said_bytes) - taken, here = there < capacity ? there : capacity;
    memcpy(into, said + taken, here);
    taken += here;
    *gone = !here;
    return here;
}

static void close_nothing(struct cb_stream *s)
{
    (void)s;
}

static void say(const struct cb_frame *f, const uint8_t *payload, size_t bytes, bool changed)
{
    if (said_bytes + sizeof *f + bytes > SAID_MAX || frame_count == 2 * FRAMES_MAX) return;
    memcpy(said + said_bytes, f, sizeof *f);
    memcpy(said + said_bytes + sizeof *f, payload, bytes);
    said_bytes += sizeof *f + bytes;
    frame[frame_count].changed = changed;
    frame[frame_count++].end = said_bytes;
}

/* Change a copy of the frame, and send it. */
static void say_changed(struct cb_frame f, const uint8_t *payload, size_t bytes)
{
    if (said_bytes + sizeof f + bytes > SAID_MAX) return;
    switch (below(12)) {
    case 0:
        f.op = (uint16_t)below(CB_OP_COUNT + 2);
        break;
    case 1:
        f.context = (uint16_t)below(4);
        break;
    case 2:
        f.thread = (uint16_t)below(8);
        break;
    case 3:
        f.flags = (uint16_t)below(8);
        break;
    case 4:
        if (below(32) == 0) f.bytes = (uint32_t)word_of_note();
        break;
    case 5:
        return;
    case 6:
        say(&f, payload, bytes, true);
        break;
    default:
        break;
    }
    uint8_t *changed = said + said_bytes + sizeof f;
    say(&f, payload, bytes, true);
    for (uint64_t n = 1 + below(2); n && bytes >= 8; n--) {
        uint64_t word = word_of_note();
        size_t place = below(bytes < 256 ? bytes / 8 : 32) * 8;
        memcpy(changed + place, &word, below(4) ? 8 : 4);
    }
}

struct recording {
    const uint8_t *data;
    uint64_t bytes;
};

static struct recording recordings[1024];
static size_t recording_count;

/*
 * Send `most` frames of the recording, from the one after `skipped` on, and change one in `often`; return their
 * number.
 */
static uint64_t say_some(const struct recording *r, uint64_t skipped, uint64_t most, uint64_t often)
{
    uint64_t frames = 0;
    for (size_t at = 0; at + sizeof(struct cb_frame) <= r->bytes && frames < skipped + most; frames++) {
        struct cb_frame f;
        memcpy(&f, r->data + at, sizeof f);
        const uint8_t *payload = r->data + at + sizeof f;
        at += sizeof f + f.bytes;
        if (at > r->bytes) break;
        if (frames < skipped) continue;
        if (often && below(often) == 0)
            say_changed(f, payload, f.bytes);
        else
            say(&f, payload, f.bytes, false);
    }
    return frames < skipped ? 0 : frames - skipped;
}

/* The more is changed, the sooner a session ends: some are changed much, some little. */
static void compose(void)
{
    uint64_t often = 1 + below(below(4) ? 3 : 60), alone = below(2);
    const struct recording *r = &recordings[below(recording_count)];
    said_bytes = taken = frame_count = 0;
    uint64_t frames = say_some(r, 0, BEGINNING, 0), most = FRAMES_MAX / 8 + below(FRAMES_MAX);
    for (unsigned tries = 0; frames < most && tries < 256; tries++) {
        frames += say_some(r, BEGINNING, most - frames, often);
        if (alone && tries > 4) break;
        if (!alone) r = &recordings[below(recording_count)];
    }
    if (below(16) == 0) frame[frame_count - 1].end -= 8; /* and nothing more follows */
}

void __asan_on_error(void); /* called by the sanitizer, which must print its whole report */
void __asan_on_error(void)
{
    struct itimerval never = {0};
    setitimer(ITIMER_REAL, &never, NULL);
}

static void look_whether_still(int number)
{
    static size_t before;
    if (next == before) {
        signal(number, SIG_DFL);
        kill(getpid(), number);
    }
    before = next;
}

static cb_fn_cuMemcpyDtoHAsync_v2 copy_out_of_driver;

static CUresult CUDAAPI count_copy(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    unsigned int flags;
    CUresult result = copy_out_of_driver(to, from, bytes, stream);
    bool locked = CB_CALL(cuMemHostGetFlags)(&flags, to) == CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        __atomic_fetch_add(locked ? &read_by->locked : &read_by->ordinary, 1, __ATOMIC_RELAXED);
    return result;
}

static _Noreturn void be_worker(void)
{
    copy_out_of_driver = CB_CALL(cuMemcpyDtoHAsync_v2);
    cb_driver[CB_CUDA_cuMemcpyDtoHAsync_v2] = (void *)count_copy;

    static const struct cb_stream_kind memory = {send_nowhere, receive_said, close_nothing, NULL};
    struct itimerval still = {{0, STILL_US}, {0, STILL_US}};
    signal(SIGALRM, look_whether_still);
    setitimer(ITIMER_REAL, &still, NULL);
    cb_channel_use((struct cb_stream){&memory, -1, NULL});
    cb_serve();
    _exit(0); /* not reached */
}

static size_t read_recordings(const char *path)
{
    static uint8_t text[64 << 20];
    FILE *file = fopen(path, "rb");
    size_t all = file ? fread(text, 1, sizeof text, file) : 0;
    for (size_t at = 0; at + 8 <= all && recording_count < sizeof recordings / sizeof *recordings;) {
        struct recording *r = &recordings[recording_count];
        memcpy(&r->bytes, text + at, 8);
        if (r->bytes > all - at - 8) break;
        r->data = text + at + 8;
        at += 8 + r->bytes;
        recording_count++;
    }
    if (file) fclose(file);
    return recording_count;
}

/* ---- sessions side by side ---- */

static struct {
    pid_t pid;
    uint64_t number;
} session[SIDE_BY_SIDE];
static size_t running;
static uint64_t stopped;

static _Noreturn void give_up(const char *why, uint64_t number)
{
    printf("%s %llu\n", why, (unsigned long long)number);
    exit(1); /* the other sessions end with this process */
}

static void start(uint64_t number)
{
    state = (number + 1) * 0x9e3779b97f4a7c15ull;
    compose();
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_worker();
    }
    if (child < 0) give_up("no process for session", number);
    session[running].pid = child;
    session[running++].number = number;
}

/* It may have been stopped: a kernel that runs for ever is no fault. */
static void await_one(void)
{
    int status;
    pid_t child = wait(&status);
    size_t i = 0;
    while (i < running && session[i].pid != child)
        i++;
    if (i == running) give_up("the holder of the secret ended before session", session[0].number);
    bool late = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    stopped += late;
    if (!late && (!WIFEXITED(status) || WEXITSTATUS(status) == SANITIZER || WEXITSTATUS(status) == LEAKED)) {
        printf("status %x: ", (unsigned)status);
        give_up("this did not end well: session", session[i].number);
    }
    session[i] = session[--running];
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    said = mmap(NULL, SAID_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    read_by = mmap(NULL, sizeof *read_by, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!read_recordings(argv[1]) || read_by == MAP_FAILED || said == MAP_FAILED || !cb_driver_open()) return 2;
    state = 0x9e3779b97f4a7c15ull;
    for (size_t i = 0; i < sizeof secret; i++)
        secret[i] = (uint8_t)any();
    if (!start_other()) return 2;
    uint64_t seed = strtoull(argv[2], NULL, 10), sessions = strtoull(argv[3], NULL, 10);
    for (uint64_t i = 0; i < sessions; i++) {
        start(seed + i);
        while (running == SIDE_BY_SIDE)
            await_one();
        if (i % LOOK_EVERY == LOOK_EVERY - 1 && !other_is_well()) give_up("the secret of another was changed in one up to", seed + i);
    }
    while (running)
        await_one();
    if (!other_is_well()) give_up("the secret of another was changed in one up to", seed + sessions - 1);
    printf("%llu frames, %llu of them changed, in %llu sessions, %llu of them stopped, ",
           (unsigned long long)read_by->frames, (unsigned long long)read_by->changed, (unsigned long long)sessions,
           (unsigned long long)stopped);
    printf("%llu copies into page-locked memory, %llu into other memory\n", (unsigned long long)read_by->locked,
           (unsigned long long)read_by->ordinary);
    return 0;
}
