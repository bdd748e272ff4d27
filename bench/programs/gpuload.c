/*
 * A tenant that keeps a card busy: kernels of one length, or graphs of them, from several streams, for a given
 * time.
 *
 *   gpuload --kernels FILE.ptx --kernel-us 1000 --seconds 3 [--iterations N] [--streams 1] [--graph 0]
 *           [--depth 0] [--think-us 0] [--sync] [--device 0] [--memory-mib 0] [--start-ns 0]
 *           [--sample-ms 50]
 *
 * It keeps `depth` launches in flight per stream (0: about 4 ms of work, at least two). The last line on stdout
 * is a JSON object: launches and nanoseconds of work completed, and a series of [time_ns, completed] on
 * CLOCK_MONOTONIC. "ready" is printed once the context exists and before the first launch.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define STREAMS_MAX 64
#define DEPTH_MAX   256
#define SAMPLES_MAX 200000

struct options {
    const char *kernels;
    double kernel_us, seconds, think_us, sample_ms;
    unsigned long long iterations, start_ns;
    int streams, graph, depth, sync, device, memory_mib;
};

struct lane {
    CUstream stream;
    CUgraphExec graph;
    CUevent done[DEPTH_MAX];
    unsigned long long launched, completed;
};

static struct options options = {
    .kernels = "kernels.ptx", .kernel_us = 1000, .seconds = 1, .streams = 1, .sample_ms = 50};
static struct lane lanes[STREAMS_MAX];
static uint64_t sample_at[SAMPLES_MAX];
static unsigned long long sample_count[SAMPLES_MAX];
static unsigned samples;
static unsigned long long completed;

static void parse(int argc, char **argv)
{
    static const struct option names[] = {{"kernels", 1, 0, 'k'},    {"kernel-us", 1, 0, 'u'},
                                          {"seconds", 1, 0, 's'},    {"iterations", 1, 0, 'i'},
                                          {"streams", 1, 0, 'n'},    {"graph", 1, 0, 'g'},
                                          {"depth", 1, 0, 'd'},      {"think-us", 1, 0, 't'},
                                          {"sync", 0, 0, 'y'},       {"device", 1, 0, 'c'},
                                          {"memory-mib", 1, 0, 'm'}, {"start-ns", 1, 0, 'a'},
                                          {"sample-ms", 1, 0, 'p'},  {0, 0, 0, 0}};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (c) {
        case 'k':
            options.kernels = optarg;
            break;
        case 'u':
            options.kernel_us = atof(optarg);
            break;
        case 's':
            options.seconds = atof(optarg);
            break;
        case 'i':
            options.iterations = strtoull(optarg, NULL, 10);
            break;
        case 'n':
            options.streams = atoi(optarg);
            break;
        case 'g':
            options.graph = atoi(optarg);
            break;
        case 'd':
            options.depth = atoi(optarg);
            break;
        case 't':
            options.think_us = atof(optarg);
            break;
        case 'y':
            options.sync = 1;
            break;
        case 'c':
            options.device = atoi(optarg);
            break;
        case 'm':
            options.memory_mib = atoi(optarg);
            break;
        case 'a':
            options.start_ns = strtoull(optarg, NULL, 10);
            break;
        case 'p':
            options.sample_ms = atof(optarg);
            break;
        default:
            exit(64);
        }
    }
    double unit_us = options.kernel_us * (options.graph > 0 ? options.graph : 1);
    if (options.depth <= 0) options.depth = unit_us > 0 ? (int)(4000.0 / unit_us) : DEPTH_MAX;
    if (options.depth < 2) options.depth = 2;
    if (options.depth > DEPTH_MAX) options.depth = DEPTH_MAX;
    if (options.sync) options.depth = 1;
    if (options.streams < 1 || options.streams > STREAMS_MAX) exit(64);
}

static void launch_kernel(CUfunction function, CUstream stream)
{
    unsigned long long argument =
        options.iterations ? options.iterations : (unsigned long long)(options.kernel_us * 1000);
    void *arguments[] = {&argument};
    CHECK(d_cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

static void prepare(struct lane *lane, CUfunction function)
{
    CHECK(d_cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < options.depth; i++)
        CHECK(d_cuEventCreate(&lane->done[i], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
    if (options.graph <= 0) return;
    CUgraph graph;
    CHECK(d_cuStreamBeginCapture(lane->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < options.graph; i++)
        launch_kernel(function, lane->stream);
    CHECK(d_cuStreamEndCapture(lane->stream, &graph));
    CHECK(d_cuGraphInstantiateWithFlags(&lane->graph, graph, 0));
}

static void sample(uint64_t now)
{
    if (samples > 0 && now - sample_at[samples - 1] < (uint64_t)(options.sample_ms * 1e6)) return;
    if (samples == SAMPLES_MAX) return;
    sample_at[samples] = now;
    sample_count[samples++] = completed;
}

static void wait_oldest(struct lane *lane)
{
    CHECK(d_cuEventSynchronize(lane->done[lane->completed % (unsigned)options.depth]));
    lane->completed++;
    completed++;
    sample(now_ns());
}

static void step(struct lane *lane, CUfunction function)
{
    if (lane->launched - lane->completed == (unsigned)options.depth) wait_oldest(lane);
    if (options.graph > 0)
        CHECK(d_cuGraphLaunch(lane->graph, lane->stream));
    else
        launch_kernel(function, lane->stream);
    CHECK(d_cuEventRecord(lane->done[lane->launched % (unsigned)options.depth], lane->stream));
    lane->launched++;
    if (options.sync) wait_oldest(lane);
    if (options.think_us > 0) usleep((useconds_t)options.think_us);
}

static void print_result(uint64_t began, uint64_t ended)
{
    int per_launch = options.graph > 0 ? options.graph : 1;
    printf("{\"launches\": %llu, \"kernel_ns\": %.0f, \"work_ns\": %.0f, \"began_ns\": %llu, \"ended_ns\": "
           "%llu, "
           "\"series\": [",
           completed, options.kernel_us * 1000, options.kernel_us * 1000 * per_launch * (double)completed,
           (unsigned long long)began, (unsigned long long)ended);
    for (unsigned i = 0; i < samples; i++)
        printf("%s[%llu, %llu]", i ? ", " : "", (unsigned long long)sample_at[i], sample_count[i]);
    printf("]}\n");
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    driver_open();
    CHECK(d_cuInit(0));
    CUdevice device;
    CUcontext context;
    CHECK(d_cuDeviceGet(&device, options.device));
    CHECK(d_cuDevicePrimaryCtxRetain(&context, device));
    CHECK(d_cuCtxSetCurrent(context));
    CUmodule module = load_kernels(options.kernels);
    CUfunction function;
    CHECK(d_cuModuleGetFunction(&function, module, options.iterations ? "busy_loop" : "spin_ns"));
    for (int i = 0; i < options.streams; i++)
        prepare(&lanes[i], function);
    if (options.memory_mib > 0) {
        CUdeviceptr memory;
        CHECK(d_cuMemAlloc(&memory, (size_t)options.memory_mib << 20));
    }
    printf("ready\n");
    fflush(stdout);
    uint64_t began = now_ns();
    while (began < options.start_ns) {
        usleep(200);
        began = now_ns();
    }
    uint64_t end = began + (uint64_t)(options.seconds * 1e9);
    sample(began);
    for (int i = 0; now_ns() < end; i = (i + 1) % options.streams)
        step(&lanes[i], function);
    for (int i = 0; i < options.streams; i++)
        while (lanes[i].completed < lanes[i].launched)
            wait_oldest(&lanes[i]);
    print_result(began, now_ns());
    return 0;
}
