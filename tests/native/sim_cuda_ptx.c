/* Checks of interpreted PTX kernels together with time, processes and other parts of the driver. */
#include "sim_cuda_check.h"

#include <sys/wait.h>

static const char text[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry endless(.param .u64 p0)\n{ .reg .b32 %r<2>; mov.u32 %r0, 0;\nL: add.u32 %r0, %r0, 1; bra.uni L; }\n"
    ".visible .entry bump(.param .u64 p0, .param .u32 n, .param .u32 rounds)\n"
    "{ .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %p<2>; ld.param.u64 %d0, [p0]; ld.param.u32 %r0, [n]; ld.param.u32 %r5, [rounds];\n"
    "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;\n"
    "setp.ge.u32 %p0, %r1, %r0; @%p0 ret; mul.wide.u32 %d1, %r1, 4; add.u64 %d0, %d0, %d1;\n"
    "L: ld.global.u32 %r4, [%d0]; add.u32 %r4, %r4, 1; st.global.u32 [%d0], %r4; sub.u32 %r5, %r5, 1;\n"
    "setp.ne.u32 %p1, %r5, 0; @%p1 bra L; ret; }\n"
    ".visible .entry wrong(.param .u64 p0)\n{ .reg .b32 %r0; .reg .b64 %d0; ld.param.u64 %d0, [p0]; ld.global.u32 %r0, [%d0];\n"
    "st.global.u32 [%d0], %r0; ret; }\n";
static CUmodule kernels;

static CUfunction named(const char *name)
{
    CUfunction f;
    OK(cuModuleGetFunction(&f, kernels, name));
    return f;
}

static void begin(void)
{
    start();
    OK(cuModuleLoadData(&kernels, text));
}

static void bump(CUstream s, CUdeviceptr at, unsigned n, unsigned rounds)
{
    void *p[] = {&at, &n, &rounds};
    OK(cuLaunchKernel(named("bump"), (n + 127) / 128, 1, 1, 128, 1, 1, 0, s, p, NULL));
}

static void launch_endless(void)
{
    CUdeviceptr nothing = 0;
    void *p[] = {&nothing};
    OK(cuLaunchKernel(named("endless"), 4, 1, 1, 64, 1, 1, 0, NULL, p, NULL));
}

/* The destruction of the context ends the kernel, and the next context works. */
static void endless_and_destroyed(void)
{
    CUcontext other;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuModuleLoadData(&kernels, text));
    launch_endless();
    double before = now_s();
    OK(cuCtxDestroy_v2(other));
    TRUE(now_s() - before < 30);
    begin();
    CUdeviceptr at;
    unsigned found[64];
    OK(cuMemAlloc_v2(&at, sizeof found));
    OK(cuMemsetD32_v2(at, 5, 64));
    bump(NULL, at, 64, 3);
    OK(cuMemcpyDtoH_v2(found, at, sizeof found));
    for (int i = 0; i < 64; i++)
        EQUAL(found[i], 8);
    OK(cuMemFree_v2(at));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

/* Print a line when the kernel runs, and wait for it for ever. */
static void endless_and_waiting(void)
{
    begin();
    launch_endless();
    EXPECT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    printf("ready\n");
    fflush(stdout);
    cuCtxSynchronize();
}

static void in_graphs(void)
{
    CUstream s;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr at;
    unsigned found[300];
    begin();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&at, sizeof found));
    OK(cuMemsetD32_v2(at, 0, 300));
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    bump(s, at, 300, 2);
    bump(s, at, 200, 5);
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 10; i++)
        OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(found, at, sizeof found));
    for (int i = 0; i < 300; i++)
        EQUAL(found[i], i < 200 ? 70 : 20);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuMemFree_v2(at));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void managed(void)
{
    CUdeviceptr at;
    begin();
    OK(cuMemAllocManaged(&at, 4096, CU_MEM_ATTACH_GLOBAL));
    unsigned *words = (unsigned *)at;
    for (unsigned i = 0; i < 1024; i++)
        words[i] = i;
    bump(NULL, at, 1024, 7);
    OK(cuCtxSynchronize());
    for (unsigned i = 0; i < 1024; i++)
        EQUAL(words[i], i + 7);
    OK(cuMemFree_v2(at));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

/* A child forked while kernels run has none of them, and they run to their end. */
static void forked(void)
{
    CUdeviceptr at;
    unsigned found[2048];
    begin();
    OK(cuMemAlloc_v2(&at, sizeof found));
    OK(cuMemsetD32_v2(at, 0, 2048));
    for (int i = 0; i < 6; i++) {
        bump(NULL, at, 2048, 2000);
        pid_t child = fork();
        if (child == 0) _exit(cuCtxSynchronize() == CUDA_SUCCESS ? 1 : 0);
        int status;
        TRUE(waitpid(child, &status, 0) == child);
        TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    OK(cuMemcpyDtoH_v2(found, at, sizeof found));
    for (int i = 0; i < 2048; i++)
        EQUAL(found[i], 12000);
    OK(cuMemFree_v2(at));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

/* The error is returned by the next call that waits, and stays. */
static void sticks(void)
{
    CUdeviceptr nowhere = 4096, at;
    void *p[] = {&nowhere};
    begin();
    OK(cuMemAlloc_v2(&at, 256));
    OK(cuLaunchKernel(named("wrong"), 1, 1, 1, 32, 1, 1, 0, NULL, p, NULL));
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuMemsetD32_v2(at, 0, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuLaunchKernel(named("wrong"), 1, 1, 1, 32, 1, 1, 0, NULL, p, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuDevicePrimaryCtxReset_v2(0));
    begin();
    OK(cuMemAlloc_v2(&at, 256));
    OK(cuMemsetD32_v2(at, 0, 64));
    bump(NULL, at, 64, 1);
    OK(cuCtxSynchronize());
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {{"endless_and_destroyed", endless_and_destroyed},
                                          {"endless_and_waiting", endless_and_waiting},
                                          {"in_graphs", in_graphs},
                                          {"managed", managed},
                                          {"forked", forked},
                                          {"sticks", sticks}};
    return run_check(checks, sizeof checks / sizeof checks[0], argc, argv);
}
