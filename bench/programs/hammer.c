/*
 * A tenant that allocates and frees in every family, as fast as it can.
 *
 *   hammer --seconds S [--largest-mib 64] [--hold-mib 0] [--seed N]   random allocations
 *   hammer --fill                                                     until out of memory, then down to small
 *   pieces
 *
 * With --gate it begins when its standard input is closed. The last line on stdout is a JSON object. "ready" is
 * printed once the context exists. With --hold-mib the program frees its oldest allocations above that much.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define HELD_MAX 4096

enum family { LINEAR, PITCHED, MANAGED, ASYNC, PHYSICAL, ARRAY, FAMILIES };

struct allocation {
    enum family family;
    size_t bytes;
    union {
        CUdeviceptr pointer;
        CUmemGenericAllocationHandle handle;
        CUarray array;
    } as;
};

static struct allocation held[HELD_MAX];
static unsigned first, count;
static size_t held_bytes, most_bytes;
static unsigned long long granted[FAMILIES], denied, failed;
static CUstream stream;
static uint64_t state;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static CUresult allocate(struct allocation *made, enum family family, size_t bytes)
{
    made->family = family;
    made->bytes = bytes;
    switch (family) {
    case LINEAR:
        return d_cuMemAlloc(&made->as.pointer, bytes);
    case PITCHED: {
        size_t pitch;
        return d_cuMemAllocPitch(&made->as.pointer, &pitch, 1000, bytes / 1024 + 1, 4);
    }
    case MANAGED:
        return d_cuMemAllocManaged(&made->as.pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    case ASYNC:
        return d_cuMemAllocAsync(&made->as.pointer, bytes, stream);
    case PHYSICAL: {
        CUmemAllocationProp property = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
        size_t unit = 2 << 20;
        made->bytes = (bytes + unit - 1) / unit * unit;
        return d_cuMemCreate(&made->as.handle, made->bytes, &property, 0);
    }
    default: {
        CUDA_ARRAY_DESCRIPTOR shape = {
            .Width = 1024, .Height = bytes / 4096 + 1, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
        return d_cuArrayCreate(&made->as.array, &shape);
    }
    }
}

static void release(const struct allocation *gone)
{
    switch (gone->family) {
    case LINEAR:
    case PITCHED:
    case MANAGED:
        CHECK(d_cuMemFree(gone->as.pointer));
        break;
    case ASYNC:
        CHECK(d_cuMemFreeAsync(gone->as.pointer, stream));
        break;
    case PHYSICAL:
        CHECK(d_cuMemRelease(gone->as.handle));
        break;
    default:
        CHECK(d_cuArrayDestroy(gone->as.array));
    }
    held_bytes -= gone->bytes;
}

static void drop_oldest(void)
{
    release(&held[first % HELD_MAX]);
    first++;
    count--;
}

static bool take(enum family family, size_t bytes)
{
    if (count == HELD_MAX) drop_oldest();
    struct allocation *made = &held[(first + count) % HELD_MAX];
    CUresult result = allocate(made, family, bytes);
    if (result == CUDA_SUCCESS) {
        count++;
        granted[family]++;
        held_bytes += made->bytes;
        if (held_bytes > most_bytes) most_bytes = held_bytes;
        return true;
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        denied++;
    else
        failed++;
    return false;
}

static void churn(double seconds, size_t largest, size_t hold)
{
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
    while (now_ns() < end) {
        size_t bytes = (size_t)(next_random() % largest) + 1;
        if (!take((enum family)(next_random() % FAMILIES), bytes))
            for (unsigned i = 0; i < 4 && count > 0; i++)
                drop_oldest();
        while ((hold > 0 && held_bytes > hold && count > 0) || (count > 0 && next_random() % 8 == 0))
            drop_oldest();
    }
}

static void fill(void)
{
    for (size_t bytes = (size_t)1 << 30; bytes >= (size_t)2 << 20; bytes /= 2)
        while (take(LINEAR, bytes))
            ;
}

int main(int argc, char **argv)
{
    double seconds = 1;
    size_t largest = (size_t)64 << 20, hold = 0;
    bool filling = false, gate = false;
    state = (uint64_t)getpid() * 0x9E3779B97F4A7C15ull + now_ns();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--fill") == 0) {
            filling = true;
            continue;
        }
        if (strcmp(argv[i], "--gate") == 0) {
            gate = true;
            continue;
        }
        if (i + 1 == argc) return 64;
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--seconds") == 0)
            seconds = atof(value);
        else if (strcmp(argv[i], "--largest-mib") == 0)
            largest = (size_t)atoi(value) << 20;
        else if (strcmp(argv[i], "--hold-mib") == 0)
            hold = (size_t)atoi(value) << 20;
        else if (strcmp(argv[i], "--seed") == 0)
            state = strtoull(value, NULL, 10) * 0x9E3779B97F4A7C15ull + 1;
        else
            return 64;
        i++;
    }
    driver_open();
    CHECK(d_cuInit(0));
    CUcontext context;
    CHECK(d_cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(d_cuCtxSetCurrent(context));
    CHECK(d_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    size_t unused = 0, total = 0;
    CHECK(d_cuMemGetInfo(&unused, &total));
    printf("ready\n");
    fflush(stdout);
    char unused_byte;
    if (gate && read(0, &unused_byte, 1) < 0) return 5;
    if (filling)
        fill();
    else
        churn(seconds, largest, hold);
    printf("{\"granted\": %llu, \"linear\": %llu, \"pitched\": %llu, \"managed\": %llu, \"async\": %llu, "
           "\"physical\": %llu, \"array\": %llu, \"denied\": %llu, \"failed\": %llu, \"most_bytes\": %zu, "
           "\"held_bytes\": %zu, \"free_at_start\": %zu, \"total\": %zu}\n",
           granted[0] + granted[1] + granted[2] + granted[3] + granted[4] + granted[5], granted[LINEAR],
           granted[PITCHED], granted[MANAGED], granted[ASYNC], granted[PHYSICAL], granted[ARRAY], denied,
           failed, most_bytes, held_bytes, unused, total);
    fflush(stdout);
    while (count > 0)
        drop_oldest();
    CHECK(d_cuCtxSynchronize());
    return 0;
}
