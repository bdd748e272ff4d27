/*
 * Checkpoints: sim_cuda_checkpoint target MIB
 *
 * act PID LETTERS [TIMEOUT_MS].
 *
 * A target holds memory with known contents, and for each line it reads uses the card and prints whether
 * everything is unchanged. `act` makes one call for each letter and prints the results: Lock, Checkpoint,
 * Restore, Unlock, State (as -1 - state), Thread, and X: a restore onto another card. The PID "self" is its
 * own; it holds memory then.
 */
#include "sim_cuda_check.h"

#define MIB   (1ull << 20)
#define WORDS 1024

static CUdeviceptr held;

static void hold(unsigned long long mib)
{
    start();
    OK(cuMemAlloc_v2(&held, mib * MIB));
    count_up(NULL, held, WORDS);
    OK(cuCtxSynchronize());
}

static void use(void)
{
    static int host[WORDS];
    CUdeviceptr more;
    OK(cuMemAlloc_v2(&more, MIB));
    OK(cuMemcpyDtoH_v2(host, held, sizeof host));
    for (int i = 0; i < WORDS; i++)
        EQUAL(host[i], i);
    OK(cuMemFree_v2(more));
}

static void target(unsigned long long mib)
{
    char line[32];
    hold(mib);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "work", 4) == 0)
            spin(NULL, 3000000000); /* so long that a slow test still queries while it runs */
        else
            use();
        printf("used\n");
        fflush(stdout);
    }
}

static int answer_to(char letter, int pid, unsigned int timeout_ms)
{
    CUcheckpointLockArgs lock = {.timeoutMs = timeout_ms};
    CUcheckpointRestoreArgs restore = {0};
    CUcheckpointGpuPair pair = {{{0}}, {{1}}};
    CUprocessState state;
    int tid;
    switch (letter) {
    case 'L':
        return (int)cuCheckpointProcessLock(pid, timeout_ms ? &lock : NULL);
    case 'C':
        return (int)cuCheckpointProcessCheckpoint(pid, NULL);
    case 'R':
        return (int)cuCheckpointProcessRestore(pid, NULL);
    case 'X':
        OK(cuDeviceGetUuid(&pair.oldUuid, 0));
        restore.gpuPairs = &pair;
        restore.gpuPairsCount = 1;
        return (int)cuCheckpointProcessRestore(pid, &restore);
    case 'U':
        return (int)cuCheckpointProcessUnlock(pid, NULL);
    case 'T':
        return (int)cuCheckpointProcessGetRestoreThreadId(pid, &tid);
    default: {
        CUresult result = cuCheckpointProcessGetState(pid, &state);
        return result == CUDA_SUCCESS ? -1 - (int)state : (int)result;
    }
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    if (strcmp(argv[1], "target") == 0) {
        target(strtoull(argv[2], NULL, 10));
        return 0;
    }
    int self = strcmp(argv[2], "self") == 0;
    if (self)
        hold(64);
    else
        OK(cuInit(0));
    for (const char *letter = argv[3]; *letter; letter++)
        printf("%d ", answer_to(*letter, self ? (int)getpid() : atoi(argv[2]), argc > 4 ? (unsigned)atoi(argv[4]) : 0));
    printf("\n");
    if (self) use();
    return 0;
}
