/*
 * Checks of kernels that run side by side in one context, against the events' exact times. The card has 108
 * multiprocessors.
 */
#include "sim_cuda_check.h"

#include <math.h>

#define MS 1000000ull

static CUevent event(void)
{
    CUevent e;
    OK(cuEventCreate(&e, CU_EVENT_DEFAULT));
    return e;
}

static CUstream stream(unsigned int flags)
{
    CUstream s;
    OK(cuStreamCreate(&s, flags));
    return s;
}

static CUevent mark(CUstream s)
{
    CUevent e = event();
    OK(cuEventRecord(e, s));
    return e;
}

static void wide(CUstream s, unsigned blocks, unsigned long long ns)
{
    void *p[] = {&ns};
    OK(cuLaunchKernel(spin_ns, blocks, 1, 1, 32, 1, 1, 0, s, p, NULL));
}

/* The card is busy for 300 ms, so that all that follows is posted before it begins; it begins at the end of this. */
static CUevent hold(CUstream *streams, int count)
{
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    wide(s, 108, 300 * MS);
    CUevent begin = mark(s);
    for (int i = 0; i < count; i++) {
        streams[i] = stream(CU_STREAM_NON_BLOCKING);
        OK(cuStreamWaitEvent(streams[i], begin, 0));
    }
    return begin;
}

#define TAKES(begin, end, ms)                      \
    do {                                           \
        float took;                                \
        OK(cuEventSynchronize(end));               \
        OK(cuEventElapsedTime(&took, begin, end)); \
        TRUE(fabsf(took - (ms)) <= 0.02f);         \
    } while (0)

static void quarters(void)
{
    CUstream s[5];
    CUevent begin = hold(s, 5), end[5];
    for (int i = 0; i < 5; i++) {
        wide(s[i], 27, 10 * MS);
        end[i] = mark(s[i]);
    }
    for (int i = 0; i < 4; i++)
        TAKES(begin, end[i], 10.0f);
    TAKES(begin, end[4], 20.0f); /* there was no space for a fifth */
}

static void whole_cards(void)
{
    CUstream s[2];
    CUevent begin = hold(s, 2), end[2];
    for (int i = 0; i < 2; i++) {
        wide(s[i], 1000, 10 * MS);
        end[i] = mark(s[i]);
    }
    TAKES(begin, end[0], 10.0f);
    TAKES(begin, end[1], 20.0f);
}

static void rest_of_the_card(void)
{
    CUstream s[2];
    CUevent begin = hold(s, 2), end[2];
    wide(s[0], 81, 10 * MS);
    end[0] = mark(s[0]);
    wide(s[1], 54, 10 * MS); /* half of what it needs for 10 ms, all of it from then on */
    end[1] = mark(s[1]);
    TAKES(begin, end[0], 10.0f);
    TAKES(begin, end[1], 15.0f);
}

static void orders(void)
{
    CUstream s[3];
    CUevent begin = hold(s, 3), middle, end[3];
    wide(s[0], 10, 5 * MS);
    middle = mark(s[0]);
    wide(s[0], 10, 5 * MS); /* one stream: one after the other */
    end[0] = mark(s[0]);
    wide(s[1], 10, 2 * MS);
    OK(cuStreamWaitEvent(s[1], middle, 0));
    wide(s[1], 10, 4 * MS);
    end[1] = mark(s[1]);
    wide(s[2], 10, 3 * MS);
    end[2] = mark(s[2]);
    TAKES(begin, end[2], 3.0f);
    TAKES(begin, end[1], 9.0f);
    TAKES(begin, end[0], 10.0f);
}

static void legacy(void)
{
    CUstream a = stream(CU_STREAM_DEFAULT), b = stream(CU_STREAM_DEFAULT), other;
    CUevent begin = hold(&other, 1);
    OK(cuStreamWaitEvent(a, begin, 0));
    OK(cuStreamWaitEvent(b, begin, 0));
    wide(a, 10, 4 * MS);
    wide(b, 10, 6 * MS);
    CUevent both = mark(NULL); /* of all that the legacy stream follows */
    wide(NULL, 10, 1 * MS);
    CUevent barrier = mark(NULL);
    wide(a, 10, 1 * MS);
    wide(other, 10, 2 * MS);
    CUevent free_end = mark(other), last = mark(a);
    TAKES(begin, free_end, 2.0f);
    TAKES(begin, both, 6.0f);
    TAKES(begin, barrier, 7.0f);
    TAKES(begin, last, 8.0f);
    OK(cuCtxSynchronize());
}

/*
 * Many small kernels in many streams, more than the queue holds: none is lost, none runs before its
 * predecessors.
 */
static void many(void)
{
    enum { STREAMS = 8, EACH = 300 };
    CUstream s[STREAMS];
    CUevent begin = hold(s, STREAMS), end[STREAMS];
    for (int i = 0; i < EACH; i++)
        for (int k = 0; k < STREAMS; k++)
            wide(s[k], 13, 20000);
    for (int k = 0; k < STREAMS; k++)
        end[k] = mark(s[k]);
    OK(cuCtxSynchronize());
    for (int k = 0; k < STREAMS; k++) {
        float took;
        OK(cuEventElapsedTime(&took, begin, end[k]));
        TRUE(took > 5.99f);
    }
}

/* Four quarters for a second; prints how much work that was. */
static void load(void)
{
    CUstream s[4];
    CUevent begin = hold(s, 4);
    for (int i = 0; i < 100; i++)
        for (int k = 0; k < 4; k++)
            wide(s[k], 27, 10 * MS);
    CUevent end = mark(s[3]);
    TAKES(begin, end, 1000.0f);
    OK(cuCtxSynchronize());
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {{"quarters", quarters}, {"whole_cards", whole_cards},
                                          {"rest_of_the_card", rest_of_the_card}, {"orders", orders},
                                          {"legacy", legacy}, {"many", many}, {"load", load}};
    start();
    return run_check(checks, sizeof checks / sizeof checks[0], argc, argv);
}
