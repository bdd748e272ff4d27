/*
 * Feeds the worker with what a program has said, changed: remote_fuzz RECORDING SEED SESSIONS
 *
 * Each session is a process, whose way to the program is memory: the frames of a recording, of which some are changed,
 * dropped, said twice or exchanged. It may end as it likes, but not by a signal and not by a sanitizer. Prints how many
 * frames were said; ends with 1 at the first session that did not end well, with its number.
 */
#include "remote/wire/frame.h"
#include "remote/worker/channel.h"
#include "remote/worker/driver.h"
#include "remote/worker/request.h"
#include "remote/worker/session.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define FRAMES_MAX   4096
#define SECONDS_MAX  20
#define SANITIZER    99

static uint8_t *said;
static size_t said_bytes, said_room, taken;
static uint64_t state;

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
    return below(3) ? words[below(sizeof words / sizeof *words)] : any();
}

static bool send_nowhere(struct cb_stream *s, struct iovec *parts, int count)
{
    (void)s, (void)parts, (void)count;
    return true;
}

static size_t receive_said(struct cb_stream *s, void *into, size_t room, bool wait, bool *gone)
{
    (void)s, (void)wait;
    size_t here = said_bytes - taken < room ? said_bytes - taken : room;
    memcpy(into, said + taken, here);
    taken += here;
    *gone = !here;
    return here;
}

static void close_nothing(struct cb_stream *s)
{
    (void)s;
}

static void say(const struct cb_frame *f, const uint8_t *payload, size_t bytes)
{
    if (said_bytes + sizeof *f + bytes > said_room) return;
    memcpy(said + said_bytes, f, sizeof *f);
    memcpy(said + said_bytes + sizeof *f, payload, bytes);
    said_bytes += sizeof *f + bytes;
}

/* Change a copy of it, and say that. */
static void say_changed(struct cb_frame f, const uint8_t *payload, size_t bytes)
{
    if (said_bytes + sizeof f + bytes > said_room) return;
    switch (below(12)) {
    case 0:
        f.op = (uint16_t)below(CB_OP_COUNT + 2);
        break;
    case 1:
        f.context = (uint16_t)below(4);
        break;
    case 2:
        f.thread = (uint16_t)any();
        break;
    case 3:
        f.flags = (uint16_t)below(8);
        break;
    case 4:
        if (below(8) == 0) f.bytes = (uint32_t)word_of_note();
        break;
    case 5:
        return;
    case 6:
        say(&f, payload, bytes);
        break;
    default:
        break;
    }
    uint8_t *changed = said + said_bytes + sizeof f;
    say(&f, payload, bytes);
    for (uint64_t n = below(3); n && bytes >= 8; n--) {
        uint64_t word = word_of_note();
        size_t place = below(bytes < 256 ? bytes / 8 : 32) * 8;
        memcpy(changed + place, &word, below(4) ? 8 : 4);
    }
}

static uint64_t compose(const uint8_t *recording, size_t bytes)
{
    uint64_t frames = 0, often = 2 + below(40);
    said_bytes = taken = 0;
    for (size_t at = 0; at + sizeof(struct cb_frame) <= bytes && frames < FRAMES_MAX; frames++) {
        struct cb_frame f;
        memcpy(&f, recording + at, sizeof f);
        const uint8_t *payload = recording + at + sizeof f;
        at += sizeof f + f.bytes;
        if (at > bytes) break;
        if (frames > 1 && below(often) == 0)
            say_changed(f, payload, f.bytes);
        else
            say(&f, payload, f.bytes);
    }
    if (below(16) == 0) said_bytes -= below(said_bytes / 8 + 1);
    return frames;
}

static _Noreturn void serve(void)
{
    static const struct cb_stream_kind memory = {send_nowhere, receive_said, close_nothing};
    alarm(SECONDS_MAX); /* a kernel may be told to run for ever */
    cb_channel_use((struct cb_stream){&memory, -1, NULL});
    cb_serve();
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    FILE *file = fopen(argv[1], "rb");
    static uint8_t recordings[64 << 20];
    size_t all = file ? fread(recordings, 1, sizeof recordings, file) : 0, starts[1024], count = 0;
    for (size_t at = 0; at + 8 <= all && count < 1024;) {
        uint64_t bytes;
        memcpy(&bytes, recordings + at, 8);
        starts[count++] = at;
        at += 8 + bytes;
    }
    said_room = 256u << 20;
    said = mmap(NULL, said_room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!count || said == MAP_FAILED || !cb_driver_open()) return 2;
    uint64_t frames = 0, slow = 0, seed = strtoull(argv[2], NULL, 10), sessions = strtoull(argv[3], NULL, 10);
    for (uint64_t i = 0; i < sessions; i++) {
        uint64_t bytes;
        int status;
        state = (seed + i + 1) * 0x9e3779b97f4a7c15ull;
        const uint8_t *recording = recordings + starts[below(count)];
        memcpy(&bytes, recording, 8);
        frames += compose(recording + 8, bytes);
        pid_t child = fork();
        if (child == 0) serve();
        if (child < 0 || waitpid(child, &status, 0) != child) return 2;
        bool late = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
        slow += late;
        if (!late && (!WIFEXITED(status) || WEXITSTATUS(status) == SANITIZER)) {
            printf("session %llu ended with status %x\n", (unsigned long long)(seed + i), status);
            return 1;
        }
    }
    printf("%llu frames in %llu sessions, %llu of them stopped\n", (unsigned long long)frames,
           (unsigned long long)sessions, (unsigned long long)slow);
    return 0;
}
