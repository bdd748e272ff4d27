/*
 * Memory operations of programs, with printed results: the lines must be the same with a local driver and with
 * a remote one. Each check prints sums and results, never addresses.
 */
#include "sim_cuda_check.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)

static void show(const char *what, unsigned long long value)
{
    printf("%s %llu\n", what, value);
}

static unsigned long long sum(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    unsigned long long s = 14695981039346656037ull;
    for (size_t i = 0; i < bytes; i++)
        s = (s ^ at[i]) * 1099511628211ull;
    return s;
}

static unsigned char *pattern(size_t bytes, unsigned int seed)
{
    unsigned char *p = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)((i * 2654435761u + seed) >> 13);
    return p;
}

/* ---- rows and slices ---- */

static void there_and_back(size_t width, size_t height, size_t depth, size_t pitch, size_t x, CUstream s)
{
    CUdeviceptr d;
    size_t at_device = (width + 511) & ~511ull, bytes = pitch * (height + 1) * (depth + 1);
    unsigned char *in = pattern(bytes, 7), *out = pattern(bytes, 9);
    OK(cuMemAlloc_v2(&d, at_device * height * depth));
    CUDA_MEMCPY3D to = {.srcXInBytes = x,
                        .srcY = 1,
                        .srcZ = depth > 1,
                        .srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = in,
                        .srcPitch = pitch,
                        .srcHeight = height + 1,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = d,
                        .dstPitch = at_device,
                        .dstHeight = height,
                        .WidthInBytes = width,
                        .Height = height,
                        .Depth = depth};
    CUDA_MEMCPY3D from = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = d,
                          .srcPitch = at_device,
                          .srcHeight = height,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = out,
                          .dstXInBytes = x,
                          .dstPitch = pitch,
                          .dstHeight = height + 1,
                          .WidthInBytes = width,
                          .Height = height,
                          .Depth = depth};
    OK(s ? cuMemcpy3DAsync_v2(&to, s) : cuMemcpy3D_v2(&to));
    memset(in, 0, pitch); /* taken already: it is ordinary memory */
    OK(s ? cuMemcpy3DAsync_v2(&from, s) : cuMemcpy3D_v2(&from));
    OK(cuStreamSynchronize(s));
    show("box", sum(out, bytes)); /* the gaps between the rows are unchanged */
    free(in);
    free(out);
    OK(cuMemFree_v2(d));
}

static void boxes(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    there_and_back(50, 9, 1, 128, 3, NULL);
    there_and_back(51, 9, 5, 77, 0, s);
    there_and_back(1, 1, 1, 8, 1, s);
    there_and_back(4096, 700, 2, 4096, 0, NULL);      /* rows without gaps, slices with */
    there_and_back(3000, 1000, 1, 3001, 1, s);        /* more rows than are sent at once */
    there_and_back(5 * MIB + 3, 2, 1, 5 * MIB + 9, 2, NULL); /* a row that is not sent at once */
    there_and_back(64, 64, 600, 96, 7, s);
}

static void box_errors(void)
{
    CUdeviceptr d;
    unsigned char own[64] = {0};
    OK(cuMemAlloc_v2(&d, 4096));
    CUDA_MEMCPY2D good = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = own,
                          .srcPitch = 16,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = d,
                          .dstPitch = 16,
                          .WidthInBytes = 16,
                          .Height = 4};
    CUDA_MEMCPY2D c = good;
    show("good", cuMemcpy2D_v2(&c));
    c.srcPitch = 8;
    show("pitch", cuMemcpy2D_v2(&c));
    c = good;
    c.srcHost = NULL;
    show("null", cuMemcpy2D_v2(&c));
    c = good;
    c.dstMemoryType = (CUmemorytype)9;
    show("type", cuMemcpy2D_v2(&c));
    c = good;
    c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    show("array", cuMemcpy2D_v2(&c));
    c = good;
    c.Height = 0;
    show("none", cuMemcpy2D_v2(&c));
    show("missing", cuMemcpy2D_v2(NULL));
    show("stream", cuMemcpy2DAsync_v2(&good, (CUstream)0x1234560));
    show("zero", cuMemcpyHtoD_v2(d, NULL, 4));
    show("unknown", cuMemcpyHtoD_v2(0x1000, own, 4));
    show("nothing", cuMemcpyHtoD_v2(0x1000, own, 0));
    show("unaligned", cuMemsetD32_v2(d + 1, 0, 1));
    show("alive", cuCtxSynchronize());
    c = good;
    c.Height = 1000;
    show("outside", cuMemcpy2D_v2(&good) + (unsigned)cuMemcpyDtoH_v2(own, d + 4090, 64));
}

static void arrays(void)
{
    CUarray a, b;
    CUDA_ARRAY_DESCRIPTOR d = {256, 64, CU_AD_FORMAT_UNSIGNED_INT8, 4};
    unsigned char *in = pattern(64 * KIB, 1), *out = pattern(64 * KIB, 2);
    CUdeviceptr p;
    OK(cuArrayCreate_v2(&a, &d));
    OK(cuArrayCreate_v2(&b, &d));
    OK(cuMemAlloc_v2(&p, 64 * KIB));
    OK(cuMemcpyHtoA_v2(a, 0, in, 64 * KIB));
    OK(cuMemcpyAtoA_v2(b, 1024, a, 0, 32 * KIB));
    OK(cuMemcpyAtoD_v2(p, b, 0, 64 * KIB));
    OK(cuMemcpyDtoA_v2(a, 512, p, 1024));
    OK(cuMemcpyAtoHAsync_v2(out, a, 0, 64 * KIB, NULL));
    OK(cuCtxSynchronize());
    show("array", sum(out, 64 * KIB));
    show("beyond", cuMemcpyHtoA_v2(a, 64 * KIB - 4, in, 8));
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                          .srcArray = b,
                          .srcXInBytes = 12,
                          .srcY = 3,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = out,
                          .dstPitch = 100,
                          .WidthInBytes = 80,
                          .Height = 20};
    OK(cuMemcpy2D_v2(&rows));
    show("rows", sum(out, 64 * KIB));
    rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    rows.dstDevice = p;
    OK(cuMemcpy2DAsync_v2(&rows, NULL));
    OK(cuMemcpyDtoH_v2(out, p, 4 * KIB));
    show("device", sum(out, 4 * KIB));
    OK(cuArrayDestroy(a));
    show("gone", cuMemcpyHtoA_v2(a, 0, in, 4));
}

/* ---- fills, and copies by what an address is ---- */

static void fills(void)
{
    CUdeviceptr d;
    CUstream s;
    unsigned char out[8192];
    OK(cuMemAlloc_v2(&d, sizeof out));
    OK(cuStreamCreate(&s, 0));
    OK(cuMemsetD8_v2(d, 1, sizeof out));
    OK(cuMemsetD16_v2(d + 100, 0x1234, 31));
    OK(cuMemsetD32_v2(d + 1000, 0xdeadbeef, 17));
    OK(cuMemsetD2D8_v2(d + 2000, 64, 7, 13, 5));
    OK(cuMemsetD2D16_v2(d + 3000, 64, 0xabcd, 13, 5));
    OK(cuMemsetD2D32_v2(d + 4000, 64, 0x01020304, 13, 5));
    OK(cuMemsetD8Async(d + 5000, 3, 99, s));
    OK(cuMemsetD16Async(d + 5200, 0x4321, 9, s));
    OK(cuMemsetD32Async(d + 5400, 0x11223344, 3, s));
    OK(cuMemsetD2D8Async(d + 6000, 32, 8, 31, 4, s));
    OK(cuMemsetD2D16Async(d + 6400, 32, 8, 15, 4, s));
    OK(cuMemsetD2D32Async(d + 7000, 32, 8, 7, 4, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(out, d, sizeof out));
    show("fills", sum(out, sizeof out));
    show("pitch", cuMemsetD2D32_v2(d, 8, 1, 13, 5));
    show("nothing", cuMemsetD8_v2(d, 1, 0));
    show("unknown", cuMemsetD8_v2(0x1000, 1, 1));
}

static void unified(void)
{
    CUdeviceptr d, e;
    void *pinned;
    unsigned char *in = pattern(3 * MIB, 4), *out = pattern(3 * MIB, 5);
    OK(cuMemAlloc_v2(&d, 3 * MIB));
    OK(cuMemAlloc_v2(&e, 3 * MIB));
    OK(cuMemAllocHost_v2(&pinned, 3 * MIB));
    OK(cuMemcpy((CUdeviceptr)pinned, (CUdeviceptr)in, 3 * MIB));
    OK(cuMemcpyAsync(d, (CUdeviceptr)pinned, 3 * MIB, NULL));
    OK(cuMemcpy(e, d, 3 * MIB));
    OK(cuMemcpyAsync((CUdeviceptr)out, e, 3 * MIB, NULL));
    OK(cuCtxSynchronize());
    show("round", sum(out, 3 * MIB));
    CUdeviceptr to[] = {d, (CUdeviceptr)out, e}, from[] = {(CUdeviceptr)in + 5, d, (CUdeviceptr)out};
    size_t sizes[] = {1000, 900, 800}, first = 0;
    CUmemcpyAttributes a = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    CUstream s;
    OK(cuStreamCreate(&s, 0));
    OK(cuMemcpyBatchAsync_v2(to, from, sizes, 3, &a, &first, 1, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(in, e, 900));
    show("batch", sum(in, 900));
    show("none", cuMemcpyBatchAsync_v2(to, from, sizes, 0, &a, &first, 1, s));
    OK(cuMemFreeHost(pinned));
    show("again", cuMemFreeHost(pinned));
}

/*
 * The source of an asynchronous copy from ordinary memory is read before the call returns, whatever the stream
 * does.
 */
static void captured_source(void)
{
    CUdeviceptr d;
    CUstream s;
    int value, out[500];
    OK(cuMemAlloc_v2(&d, sizeof out));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    spin(s, 20000000);
    for (int i = 0; i < 500; i++) {
        value = i * i;
        OK(cuMemcpyHtoDAsync_v2(d + 4 * (CUdeviceptr)i, &value, 4, s));
    }
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(out, d, sizeof out));
    for (int i = 0; i < 500; i++)
        EQUAL(out[i], i * i);
    show("captured", sum(out, sizeof out));
}

/* Without any call before: the kernel just gets the address. */

static void mapped(void)
{
    int *p, *q, *plain;
    CUdeviceptr d;
    OK(cuMemHostAlloc((void **)&p, 64 * KIB, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer_v2(&d, p + 100, 0));
    TRUE(d == (CUdeviceptr)(p + 100));
    p[3000] = 5;
    count_up(NULL, (CUdeviceptr)p, 1000);
    OK(cuCtxSynchronize());
    show("written", sum(p, 64 * KIB));
    /* Without a word before: the kernel is just given the address. */
    OK(cuMemAllocHost_v2((void **)&plain, 16 * KIB));
    plain[2000] = 9;
    count_up(NULL, (CUdeviceptr)plain, 1500);
    OK(cuCtxSynchronize());
    show("given", sum(plain, 16 * KIB));
    /* Packed, and read back by a kernel into device memory. */
    float *x = (float *)plain;
    for (int i = 0; i < 1000; i++)
        x[i] = (float)i;
    OK(cuMemAllocHost_v2((void **)&q, 16 * KIB));
    OK(cuMemAlloc_v2(&d, 4000));
    struct {
        CUdeviceptr a, b, c;
        int n;
    } packed = {(CUdeviceptr)plain, (CUdeviceptr)plain, d, 1000};
    size_t bytes = 28;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    OK(cuLaunchKernel(vector_add, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, extra));
    OK(cuMemcpyDtoHAsync_v2(q, d, 4000, NULL));
    OK(cuCtxSynchronize());
    show("added", sum(q, 4000));
    /* Between two launches the program writes again, without waiting. */
    x[1] = 1000;
    packed.c = (CUdeviceptr)q;
    OK(cuLaunchKernel(vector_add, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, extra));
    OK(cuCtxSynchronize());
    show("again", sum(q, 4000));
    /* The program writes beside what a kernel writes: both are there. */
    p[1200] = 77;
    count_up(NULL, (CUdeviceptr)(p + 1024), 100);
    p[1201] = 78;
    OK(cuCtxSynchronize());
    show("beside", sum(p, 64 * KIB));
    OK(cuMemsetD32_v2((CUdeviceptr)p, 3, 10));
    show("filled", sum(p, 64 * KIB));
    OK(cuMemFreeHost(p));
    OK(cuMemFreeHost(plain));
    OK(cuMemFreeHost(q));
    OK(cuMemHostAlloc((void **)&p, 64 * KIB, CU_MEMHOSTALLOC_DEVICEMAP)); /* new memory is zero */
    count_up(NULL, (CUdeviceptr)(p + 8), 8);
    OK(cuCtxSynchronize());
    show("new", p[15]);
}

static int *managed(size_t bytes)
{
    CUdeviceptr p;
    OK(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
    return (int *)p;
}

static void in_managed(void)
{
    size_t base = used_bytes();
    int *small[20], *big = managed(64 * MIB), out[100];
    CUstream s;
    CUmemLocation card = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    OK(cuStreamCreate(&s, 0));
    show("charged", used_bytes() - base);
    for (int i = 0; i < 20; i++) { /* several in a page */
        small[i] = managed(400);
        for (int k = 0; k < 100; k++)
            small[i][k] = i;
    }
    for (int i = 0; i < 20; i += 2)
        count_up(s, (CUdeviceptr)small[i], 50);
    OK(cuStreamSynchronize(s));
    for (int i = 0; i < 20; i++)
        show("small", sum(small[i], 400));
    for (int i = 0; i < 20; i += 3)
        OK(cuMemFree_v2((CUdeviceptr)small[i]));
    show("left", (unsigned)small[1][99] + (unsigned)small[4][49]);
    big[8 * MIB] = 1;
    big[16 * MIB - 1] = 2;
    count_up(s, (CUdeviceptr)(big + 4 * MIB), 300000);
    OK(cuStreamSynchronize(s));
    show("big", (unsigned)big[4 * MIB + 299999] + (unsigned)big[8 * MIB] + (unsigned)big[16 * MIB - 1]);
    OK(cuMemAdvise_v2((CUdeviceptr)big, MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, card));
    OK(cuMemPrefetchAsync_v2((CUdeviceptr)big, MIB, card, 0, s));
    show("foreign", cuMemAdvise_v2((CUdeviceptr)out, 4, CU_MEM_ADVISE_SET_READ_MOSTLY, card));
    for (int i = 0; i < 100; i++)
        out[i] = 3 * i;
    OK(cuMemcpyHtoD_v2((CUdeviceptr)big, out, sizeof out)); /* the program may read at once */
    show("copied", sum(big, 1000));
    OK(cuMemsetD32_v2((CUdeviceptr)(big + 50), 4, 10));
    show("filled", sum(big, 1000));
    big[7] = 70;
    OK(cuMemcpyDtoH_v2(out, (CUdeviceptr)big, sizeof out));
    show("out", sum(out, sizeof out));
    OK(cuMemFree_v2((CUdeviceptr)big));
    show("twice", cuMemFree_v2((CUdeviceptr)big));
    show("bad", cuMemAllocManaged((CUdeviceptr *)&big, 16, 0));
}

static void managed_ends_with_its_context(void)
{
    CUcontext c;
    size_t base = used_bytes();
    OK(cuCtxCreate_v2(&c, 0, 0));
    int *p = managed(3 * MIB), *other;
    p[0] = 1;
    count_up(NULL, (CUdeviceptr)p, 1000);
    OK(cuCtxDestroy_v2(c));
    OK(cuCtxSetCurrent(context));
    show("freed", used_bytes() - base);
    other = managed(3 * MIB);
    show("new", (unsigned)other[5]);
    count_up(NULL, (CUdeviceptr)other, 1000);
    OK(cuCtxSynchronize());
    show("used", (unsigned)other[999]);
}

/* ---- known memory ---- */

static void attributes_of(const char *name, CUdeviceptr p, CUdeviceptr base)
{
    unsigned int v[2];
    CUdeviceptr address = 0;
    CUcontext of = NULL;
    size_t size = 0;
    static const CUpointer_attribute numbers[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_MAPPED,         CU_POINTER_ATTRIBUTE_ACCESS_FLAGS};
    printf("%s:", name);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        v[0] = 99;
        CUresult result = cuPointerGetAttribute(v, numbers[i], p);
        printf(" %d/%u", result, v[0]);
    }
    CUresult result = cuPointerGetAttribute(&address, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, p);
    printf(" %d/%d", result, address == p);
    result = cuPointerGetAttribute(&address, CU_POINTER_ATTRIBUTE_HOST_POINTER, p);
    printf(" %d/%d", result, result == CUDA_SUCCESS && address == p);
    result = cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, p);
    printf(" %d/%d", result, of == context);
    result = cuPointerGetAttribute(&address, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p);
    printf(" %d/%d", result, address == base);
    result = cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p);
    printf(" %d/%zu", result, size);
    result = cuMemGetAddressRange_v2(&address, &size, p);
    printf(" %d/%d/%zu\n", result, result == CUDA_SUCCESS && address == base, size);
}

static void attributes(void)
{
    CUdeviceptr device, pooled, unified_memory, reserved;
    void *pinned;
    size_t pitch;
    CUstream s;
    OK(cuStreamCreate(&s, 0));
    OK(cuMemAllocPitch_v2(&device, &pitch, 100, 100, 4));
    OK(cuMemAllocAsync(&pooled, 5 * MIB, s));
    OK(cuMemAllocManaged(&unified_memory, 3 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemHostAlloc(&pinned, 3 * MIB, CU_MEMHOSTALLOC_PORTABLE));
    attributes_of("device", device + 10, device);
    attributes_of("pool", pooled + 10, pooled);
    attributes_of("managed", unified_memory + 10, unified_memory);
    attributes_of("pinned", (CUdeviceptr)pinned + 10, (CUdeviceptr)pinned);
    unsigned int flags = 0;
    OK(cuMemHostGetFlags(&flags, pinned));
    show("flags", flags);
    OK(cuMemAddressReserve(&reserved, 2 * MIB, 0, 0, 0));
    unsigned int type = 5;
    show("reserved", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reserved));
    int local;
    show("own", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)&local));
    show("range", cuMemGetAddressRange_v2(&device, &pitch, (CUdeviceptr)&local));
}

static void full(void)
{
    size_t left, total, base = used_bytes(), count = 0;
    CUdeviceptr p[1000];
    OK(cuMemGetInfo_v2(&left, &total));
    show("total", total);
    show("too much", cuMemAlloc_v2(&p[0], left + 1));
    while (count < 1000 && cuMemAlloc_v2(&p[count], 300 * MIB + 1) == CUDA_SUCCESS)
        count++;
    show("count", count);
    show("used", used_bytes() - base);
    OK(cuMemGetInfo_v2(&left, &total));
    show("exactly", cuMemAlloc_v2(&p[count], left));
    show("full", cuMemAlloc_v2(&p[count + 1], 1));
    show("managed", used_bytes() - base);
    for (size_t i = 0; i <= count; i++)
        OK(cuMemFree_v2(p[i]));
    show("freed", used_bytes() - base);
}

/* Both directions through the same pinned memory in one stream: what goes in is what has come out. */
static void through_pinned(void)
{
    CUdeviceptr a, b;
    CUstream s;
    int *pinned, out[1000];
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&a, 4000));
    OK(cuMemAlloc_v2(&b, 4000));
    OK(cuMemAllocHost_v2((void **)&pinned, 4000));
    memset(pinned, 0, 4000);
    spin(s, 5000000);
    count_up(s, a, 1000);
    OK(cuMemcpyDtoHAsync_v2(pinned, a, 4000, s));
    OK(cuMemcpyHtoDAsync_v2(b, pinned, 4000, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(out, b, 4000));
    show("through", sum(out, 4000));
    show("pinned", sum(pinned, 4000));
}

/* A graph reads and writes pinned memory at each launch, and ordinary memory as it was at capture. */
static void captured_pinned(void)
{
    CUdeviceptr a, b;
    CUstream s;
    CUgraph graph;
    CUgraphExec exec;
    int *in, *out, ordinary[100];
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&a, 4000));
    OK(cuMemAlloc_v2(&b, 4000));
    OK(cuMemAllocHost_v2((void **)&in, 4000));
    OK(cuMemAllocHost_v2((void **)&out, 4000));
    memset(in, 0, 4000);
    for (int i = 0; i < 100; i++)
        ordinary[i] = 5 * i;
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemcpyHtoDAsync_v2(a, in, 4000, s));
    OK(cuMemcpyHtoDAsync_v2(b, ordinary, sizeof ordinary, s));
    OK(cuMemcpyDtoDAsync_v2(a + 2000, b, 400, s));
    OK(cuMemcpyDtoHAsync_v2(out, a, 4000, s));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int round = 1; round < 4; round++) {
        in[round] = round;
        OK(cuGraphLaunch(exec, s));
        OK(cuStreamSynchronize(s));
        show("round", sum(out, 4000));
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void fill_host(void *p)
{
    for (int i = 0; i < 1000; i++)
        ((int *)p)[i] = i ^ 21;
}

/* A copy behind a host function copies what the function wrote. */
static void after_a_function(void)
{
    CUdeviceptr d;
    CUstream s;
    int *pinned, out[1000];
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&d, 4000));
    OK(cuMemAllocHost_v2((void **)&pinned, 4000));
    spin(s, 5000000);
    OK(cuLaunchHostFunc(s, fill_host, pinned));
    OK(cuMemcpyHtoDAsync_v2(d, pinned, 4000, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(out, d, 4000));
    show("function", sum(out, 4000));
}

/* Asynchronous copies of many sizes, again and again, while contexts are destroyed beside them. */
static void into_pinned(void)
{
    static const size_t sizes[] = {4, 4000, 4096, 100000, 1u << 20, 5u << 20, 8, 4000};
    CUdeviceptr d;
    CUstream s;
    CUcontext other;
    int *pinned[8];
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&d, 5u << 20));
    for (int i = 0; i < 8; i++)
        OK(cuMemAllocHost_v2((void **)&pinned[i], sizes[i]));
    for (int round = 0; round < 6; round++) {
        if (round % 2) OK(cuCtxCreate_v2(&other, 0, 0)); /* in which the last ones run */
        if (round % 2) OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
        OK(cuMemsetD32Async(d, 77u + (unsigned)round, (5u << 20) / 4, s));
        for (int i = 0; i < 8; i++)
            OK(cuMemcpyDtoHAsync_v2(pinned[i], d, sizes[i], s));
        OK(cuStreamSynchronize(s));
        for (int i = 0; i < 8; i++)
            show("into", sum(pinned[i], sizes[i]));
        if (round % 2) OK(cuCtxDestroy_v2(other));
        if (round % 2) OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    }
}

/* Features that only a remote card must refuse. */
static void refused(void)
{
    static const CUdevice_attribute absent[] = {
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
        CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES};
    int value, *own = malloc(8192);
    CUdeviceptr p;
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
        OK(cuDeviceGetAttribute(&value, absent[i], 0));
        EQUAL(value, 0);
    }
    EXPECT(cuMemHostRegister_v2(own, 8192, CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuMemHostRegister_v2(own, 8192, 0));
    EXPECT(cuMemHostRegister_v2(own + 8, 16, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT(cuMemHostGetDevicePointer_v2(&p, own, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostUnregister(own));
    EXPECT(cuMemHostUnregister(own), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    show("refused", 1);
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"boxes", boxes},
        {"box_errors", box_errors},
        {"arrays", arrays},
        {"fills", fills},
        {"unified", unified},
        {"captured_source", captured_source},
        {"mapped", mapped},
        {"managed", in_managed},
        {"managed_ends", managed_ends_with_its_context},
        {"attributes", attributes},
        {"full", full},
        {"through_pinned", through_pinned},
        {"captured_pinned", captured_pinned},
        {"after_a_function", after_a_function},
        {"into_pinned", into_pinned},
        {"refused", refused},
    };
    start();
    return run_check(checks, sizeof checks / sizeof checks[0], argc, argv);
}
