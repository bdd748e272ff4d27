/*
 * Checks of memory: every family is charged its rounded size and frees all of it; copies and fills move the
 * right bytes; an address outside is error 700.
 */
#include "sim_cuda_check.h"

#include <sys/mman.h>
#include <sys/wait.h>

#define MIB (1ull << 20)

static void linear(void)
{
    size_t base = used_bytes(), pitch;
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 1));
    EQUAL(used_bytes() - base, 512);
    OK(cuMemFree_v2(p));
    EXPECT(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc_v2(&p, 3 * MIB + 1));
    EQUAL(used_bytes() - base, 4 * MIB);
    OK(cuMemFree_v2(p));
    OK(cuMemAllocPitch_v2(&p, &pitch, 100, 100, 4));
    EQUAL(pitch, 512);
    EQUAL(used_bytes() - base, 51200);
    OK(cuMemFree_v2(p));
    OK(cuMemAllocManaged(&p, 2 * MIB, CU_MEM_ATTACH_GLOBAL));
    EQUAL(used_bytes() - base, 2 * MIB);
    *(int *)p = 7;
    OK(cuMemFree_v2(p));
    EQUAL(used_bytes(), base);
}

static void host(void)
{
    size_t base = used_bytes();
    void *p, *own = malloc(8192);
    CUdeviceptr d;
    OK(cuMemAllocHost_v2(&p, 4 * MIB));
    EQUAL(used_bytes(), base);
    OK(cuMemHostGetDevicePointer_v2(&d, p, 0));
    count_up(NULL, d, 100);
    OK(cuCtxSynchronize());
    EQUAL(((int *)p)[99], 99);
    OK(cuMemFreeHost(p));
    OK(cuMemHostRegister_v2(own, 8192, 0));
    EXPECT(cuMemHostRegister_v2(own, 16, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    count_up(NULL, (CUdeviceptr)own, 100);
    OK(cuCtxSynchronize());
    EQUAL(((int *)own)[99], 99);
    OK(cuMemHostUnregister(own));
    EXPECT(cuMemHostUnregister(own), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    free(own);
}

static void pool(void)
{
    size_t base = used_bytes();
    CUstream s;
    CUdeviceptr p, q;
    CUmemoryPool of_device, own;
    cuuint64_t v = 1ull << 40;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocAsync(&p, 5 * MIB, s));
    EQUAL(used_bytes() - base, 6 * MIB);
    OK(cuMemFreeAsync(p, s));
    OK(cuStreamSynchronize(s));
    EQUAL(used_bytes(), base);
    OK(cuDeviceGetDefaultMemPool(&of_device, 0));
    OK(cuMemPoolSetAttribute(of_device, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &v));
    OK(cuMemAllocAsync(&p, 5 * MIB, s));
    OK(cuMemFreeAsync(p, s));
    EXPECT(cuMemFreeAsync(p, s), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamSynchronize(s));
    OK(cuMemPoolGetAttribute(of_device, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &v));
    EQUAL(v, 6 * MIB);
    OK(cuMemPoolGetAttribute(of_device, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v));
    EQUAL(v, 0);
    EQUAL(used_bytes() - base, 6 * MIB);
    OK(cuMemAllocAsync(&q, 5 * MIB, s));
    EQUAL(q, p); /* what the pool kept */
    OK(cuMemFreeAsync(q, s));
    OK(cuMemPoolTrimTo(of_device, 0));
    EQUAL(used_bytes(), base);
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                            .maxSize = 8 * MIB};
    OK(cuMemPoolCreate(&own, &props));
    OK(cuMemAllocFromPoolAsync(&p, 6 * MIB, own, s));
    EXPECT(cuMemAllocFromPoolAsync(&q, 6 * MIB, own, s), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFreeAsync(p, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemPoolDestroy(own));
    EQUAL(used_bytes(), base);
}

static void no_access(void)
{
    size_t g;
    CUdeviceptr at;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    OK(cuMemGetAllocationGranularity(&g, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EQUAL(g, 2 * MIB);
    OK(cuMemAddressReserve(&at, 2 * g, 0, 0, 0));
    OK(cuMemCreate(&h, g, &prop, 0));
    OK(cuMemMap(at, g, 0, h, 0));
    EXPECT(cuMemMap(at, g, 0, h, 0), CUDA_ERROR_INVALID_VALUE); /* taken */
    EXPECT(cuMemsetD8_v2(at, 1, g), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void mapped(void)
{
    size_t base = used_bytes(), g = 2 * MIB;
    CUdeviceptr at;
    unsigned int last;
    CUmemGenericAllocationHandle h[3], retained;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemAddressReserve(&at, 6 * g, 0, 0, 0));
    for (int i = 0; i < 3; i++) {
        OK(cuMemCreate(&h[i], 2 * g, &prop, 0));
        OK(cuMemMap(at + (CUdeviceptr)i * 2 * g, 2 * g, 0, h[i], 0));
        OK(cuMemRelease(h[i]));
    }
    EQUAL(used_bytes() - base, 6 * g); /* the mappings keep what the handles have released */
    EXPECT(cuMemRelease(h[0]), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemSetAccess(at, 6 * g, &access, 1));
    OK(cuMemsetD32_v2(at, 0xABCD, 6 * g / 4));
    OK(cuMemcpyDtoH_v2(&last, at + 6 * g - 4, 4));
    EQUAL(last, 0xABCD);
    OK(cuMemRetainAllocationHandle(&retained, (void *)(at + g)));
    EXPECT(cuMemAddressFree(at, 6 * g), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(at, 6 * g));
    EQUAL(used_bytes() - base, 2 * g);
    OK(cuMemRelease(retained));
    OK(cuMemAddressFree(at, 6 * g));
    EQUAL(used_bytes(), base);
}

static void array(void)
{
    size_t base = used_bytes();
    static float in[64 * 64 * 4], out[64 * 64 * 4];
    CUarray a, level;
    CUmipmappedArray m;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
    CUDA_ARRAY3D_DESCRIPTOR d = {64, 64, 4, CU_AD_FORMAT_FLOAT, 1, 0};
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++)
        in[i] = (float)i;
    OK(cuArray3DCreate_v2(&a, &d));
    OK(cuArrayGetMemoryRequirements(&needs, a, 0));
    EQUAL(needs.size, used_bytes() - base);
    CUDA_MEMCPY3D to = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = in,
                        .srcPitch = 256,
                        .srcHeight = 64,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                        .dstArray = a,
                        .WidthInBytes = 256,
                        .Height = 64,
                        .Depth = 4};
    CUDA_MEMCPY3D from = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                          .srcArray = a,
                          .srcY = 1,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = out,
                          .dstPitch = 256,
                          .dstHeight = 64,
                          .WidthInBytes = 256,
                          .Height = 63,
                          .Depth = 4};
    OK(cuMemcpy3D_v2(&to));
    OK(cuMemcpy3D_v2(&from));
    EQUAL(out[0], in[64]);
    EQUAL(out[64 * 64 * 3 + 64 * 62 + 63], in[64 * 64 * 4 - 1]);
    OK(cuArrayDestroy(a));
    EQUAL(used_bytes(), base);
    d.Depth = 0;
    OK(cuMipmappedArrayCreate(&m, &d, 7));
    OK(cuMipmappedArrayGetLevel(&level, m, 6));
    EXPECT(cuMipmappedArrayGetLevel(&level, m, 7), CUDA_ERROR_INVALID_VALUE);
    OK(cuMipmappedArrayDestroy(m));
    EQUAL(used_bytes(), base);
}

static void context_end(void)
{
    CUcontext c;
    CUdeviceptr p;
    CUmodule m;
    CUarray a;
    CUmipmappedArray levels;
    CUDA_ARRAY3D_DESCRIPTOR d = {64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    size_t base = used_bytes(), bytes;
    OK(cuCtxCreate_v2(&c, 0, 0));
    TRUE(used_bytes() - base > 100 * MIB); /* a context has its cost */
    OK(cuMemAlloc_v2(&p, 5 * MIB));
    OK(cuMemAlloc_v2(&p, 100));
    OK(cuMemAllocAsync(&p, 100, NULL));
    OK(cuArray3DCreate_v2(&a, &d));
    OK(cuMipmappedArrayCreate(&levels, &d, 7));
    OK(cuModuleLoadData(&m, image));
    OK(cuModuleGetGlobal_v2(&p, &bytes, m, "table"));
    EQUAL(bytes, 64);
    OK(cuMemsetD8_v2(p, 1, bytes));
    OK(cuCtxDestroy_v2(c));
    OK(cuCtxSetCurrent(context));
    EQUAL(used_bytes(), base);
    EXPECT(cuMipmappedArrayGetLevel(&a, levels, 0), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuMipmappedArrayDestroy(levels), CUDA_ERROR_INVALID_HANDLE);
}

static void box(void)
{
    enum { PITCH = 128, ROWS = 10 };
    unsigned char in[PITCH * ROWS], out[PITCH * ROWS];
    CUdeviceptr p;
    size_t pitch;
    memset(out, 0, sizeof out);
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)i;
    OK(cuMemAllocPitch_v2(&p, &pitch, 50, ROWS, 4));
    CUDA_MEMCPY2D to = {.srcXInBytes = 3,
                        .srcY = 1,
                        .srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = in,
                        .srcPitch = PITCH,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = p,
                        .dstPitch = pitch,
                        .WidthInBytes = 50,
                        .Height = ROWS - 1};
    CUDA_MEMCPY2D from = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = p,
                          .srcPitch = pitch,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = out,
                          .dstPitch = PITCH,
                          .WidthInBytes = 50,
                          .Height = ROWS - 1};
    OK(cuMemcpy2D_v2(&to));
    OK(cuMemcpy2DAsync_v2(&from, NULL));
    OK(cuCtxSynchronize());
    for (int y = 0; y < ROWS - 1; y++) {
        for (int x = 0; x < PITCH; x++)
            EQUAL(out[y * PITCH + x], x < 50 ? in[(y + 1) * PITCH + x + 3] : 0);
    }
    OK(cuMemsetD2D16_v2(p, pitch, 0x1234, 25, ROWS));
    OK(cuMemcpyDtoH_v2(out, p + pitch * (ROWS - 1) + 48, 2));
    EQUAL(out[0], 0x34);
    EXPECT(cuMemsetD2D16_v2(p, 10, 1, 25, ROWS), CUDA_ERROR_INVALID_VALUE);
}

static void pointers(void)
{
    CUdeviceptr p;
    CUmemorytype type;
    int ordinal;
    CUcontext of;
    size_t size;
    CUdeviceptr base;
    unsigned int managed;
    int local;
    OK(cuMemAlloc_v2(&p, 3 * MIB));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 100));
    EQUAL(type, CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    TRUE(of == context);
    OK(cuMemGetAddressRange_v2(&base, &size, p + 2 * MIB));
    EQUAL(base, p);
    EQUAL(size, 3 * MIB);
    EXPECT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)&local),
           CUDA_ERROR_INVALID_VALUE);
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void *data[] = {&type, &ordinal, &managed};
    OK(cuPointerGetAttributes(3, which, data, (CUdeviceptr)&local));
    EQUAL(type, 0);
    OK(cuPointerGetAttributes(3, which, data, p));
    EQUAL(ordinal, 0);
    EQUAL(managed, 0);
}

/* After the error nothing works in that context, and a reset repairs it. */
static void illegal(void)
{
    CUdeviceptr p;
    int x;
    OK(cuMemAlloc_v2(&p, 4000));
    count_up(NULL, p, 2000);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuMemAlloc_v2(&p, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuDevicePrimaryCtxReset_v2(0));
    EXPECT(cuMemAlloc_v2(&p, 4), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuMemcpyHtoD_v2(p, &(int){5}, 4));
    OK(cuMemcpyDtoH_v2(&x, p, 4));
    EQUAL(x, 5);
    EXPECT(cuMemcpyDtoH_v2(&x, p, 8), CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* A misaligned address is another error than an address outside of all memory. */
static void misaligned(void)
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 4000));
    count_up(NULL, p + 2, 10);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_MISALIGNED_ADDRESS);
    OK(cuDevicePrimaryCtxReset_v2(0));
}

/*
 * On a card beside a Grace CPU kernels can access any page of the program; elsewhere that is an illegal
 * address.
 */
static void coherent(void)
{
    size_t bare = used_bytes();
    int value = 0, *plain = malloc(4 * MIB);
    static const struct {
        CUdevice_attribute attribute;
        int value;
    } told[] = {{CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 1},
                {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 1},
                {CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 1},
                {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 1},
                {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
                {CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, CU_DEVICE_NUMA_CONFIG_NUMA_NODE},
                {CU_DEVICE_ATTRIBUTE_NUMA_ID, 1},
                {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
                {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 9}};
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        OK(cuDeviceGetAttribute(&value, told[i].attribute, 0));
        EQUAL(value, told[i].value);
    }
    count_up(NULL, (CUdeviceptr)plain, MIB);
    OK(cuCtxSynchronize());
    EQUAL(plain[MIB - 1], MIB - 1);
    EQUAL(used_bytes(), bare);
    free(plain);
    plain = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(plain, 4096);
    count_up(NULL, (CUdeviceptr)plain, 1);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void not_coherent(void)
{
    int value = 7, *plain = malloc(4096);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0));
    EQUAL(value, 0);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, 0));
    EQUAL(value, CU_DEVICE_NUMA_CONFIG_NONE);
    count_up(NULL, (CUdeviceptr)plain, 1);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    free(plain);
}

static void shared_by_descriptor(void)
{
    size_t base = used_bytes();
    CUmemGenericAllocationHandle h;
    int fd, status, value = 0;
    CUdeviceptr at;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemCreate(&h, 2 * MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(at, 2 * MIB, 0, h, 0));
    OK(cuMemSetAccess(at, 2 * MIB, &access, 1));
    char number[16];
    snprintf(number, sizeof number, "%d", dup(fd)); /* without close-on-exec */
    if (fork() == 0) {
        execl("/proc/self/exe", "self", "import", number, (char *)NULL);
        _exit(99);
    }
    wait(&status);
    EQUAL(status, 0);
    OK(cuMemcpyDtoH_v2(&value, at + 400, 4));
    EQUAL(value, 100);
    OK(cuMemUnmap(at, 2 * MIB));
    OK(cuMemRelease(h));
    usleep(2000); /* dead processes are searched for no more often than every millisecond */
    EQUAL(used_bytes(), base);
}

static void import(const char *number)
{
    CUmemGenericAllocationHandle h;
    CUdeviceptr at;
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)atoi(number),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(at, 2 * MIB, 0, h, 0));
    OK(cuMemSetAccess(at, 2 * MIB, &access, 1));
    count_up(NULL, at, 1000);
    OK(cuCtxSynchronize());
}

static void ipc(void)
{
    CUdeviceptr p;
    CUipcMemHandle h;
    int status, value = 0;
    char text[2 * sizeof h + 1];
    OK(cuMemAlloc_v2(&p, 3 * MIB));
    OK(cuMemsetD32_v2(p, 77, 1000));
    OK(cuIpcGetMemHandle(&h, p));
    OK(cuMemcpyDtoH_v2(&value, p + 4, 4));
    EQUAL(value, 77); /* survived the move */
    for (size_t i = 0; i < sizeof h; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)h.reserved[i]);
    if (fork() == 0) {
        execl("/proc/self/exe", "self", "open", text, (char *)NULL);
        _exit(99);
    }
    wait(&status);
    EQUAL(status, 0);
    OK(cuMemcpyDtoH_v2(&value, p + 400, 4));
    EQUAL(value, 100);
    OK(cuMemFree_v2(p));
}

static void open_handle(const char *text)
{
    CUipcMemHandle h;
    CUdeviceptr p;
    int value;
    for (size_t i = 0; i < sizeof h; i++) {
        unsigned int byte;
        sscanf(text + 2 * i, "%2x", &byte);
        h.reserved[i] = (char)byte;
    }
    size_t base = used_bytes();
    OK(cuIpcOpenMemHandle_v2(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EQUAL(used_bytes(), base); /* the owner is charged */
    OK(cuMemcpyDtoH_v2(&value, p + 4, 4));
    EQUAL(value, 77);
    count_up(NULL, p, 1000);
    OK(cuCtxSynchronize());
    OK(cuIpcCloseMemHandle(p));
    EXPECT(cuIpcCloseMemHandle(p), CUDA_ERROR_INVALID_VALUE);
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"linear", linear},
        {"host", host},
        {"pool", pool},
        {"mapped", mapped},
        {"array", array},
        {"context_end", context_end},
        {"box", box},
        {"pointers", pointers},
        {"illegal", illegal},
        {"misaligned", misaligned},
        {"coherent", coherent},
        {"not_coherent", not_coherent},
        {"no_access", no_access},
        {"descriptor", shared_by_descriptor},
        {"ipc", ipc},
    };
    start();
    if (argc > 2 && strcmp(argv[1], "import") == 0) {
        import(argv[2]);
        return 0;
    }
    if (argc > 2 && strcmp(argv[1], "open") == 0) {
        open_handle(argv[2]);
        return 0;
    }
    return run_check(checks, sizeof checks / sizeof checks[0], argc, argv);
}
