/* Occupancy: the driver's formula is asked once for each kernel and shape, and its answers are cached. */
#include "remote/client/launch/launch_attributes.h"
#include "remote/client/module/function_info.h"
#include "remote_wrapped.h"

#define CACHE_PLACES 1024u

enum question { BLOCKS = 1, SHARED_LEFT };

struct key {
    uint64_t serial, question, a, b, c;
};

static struct place {
    struct key key;
    uint64_t answer;
} places[CACHE_PLACES];
static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;

static struct place *cache_place(const struct key *k)
{
    uint64_t h = k->serial * 0x9e3779b97f4a7c15ull + k->question;
    h = (h ^ k->a) * 0x9e3779b97f4a7c15ull;
    h = (h ^ k->b) * 0x9e3779b97f4a7c15ull;
    h = (h ^ k->c) * 0x9e3779b97f4a7c15ull;
    return &places[h >> 54];
}

static bool cache_get(const struct key *k, uint64_t *answer)
{
    pthread_mutex_lock(&cache_lock);
    const struct place *p = cache_place(k);
    bool same = memcmp(&p->key, k, sizeof *k) == 0;
    if (same) *answer = p->answer;
    pthread_mutex_unlock(&cache_lock);
    return same;
}

static void cache_put(const struct key *k, uint64_t answer)
{
    pthread_mutex_lock(&cache_lock);
    *cache_place(k) = (struct place){*k, answer};
    pthread_mutex_unlock(&cache_lock);
}

/* Changed attributes of a kernel change its answers. */
static uint64_t cache_question(const struct cb_function *f, enum question q, unsigned int flags)
{
    return (uint64_t)f->changes << 32 | (uint64_t)flags << 8 | (uint64_t)q;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
                                                                     int blockSize, size_t dynamicSMemSize,
                                                                     unsigned int flags)
{
    uint64_t answer;
    const struct cb_function *f = cb_function_of((uintptr_t)func);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!numBlocks) return CUDA_ERROR_INVALID_VALUE;
    struct key k = {f->serial, cache_question(f, BLOCKS, flags), (uint64_t)blockSize, dynamicSMemSize, 0};
    if (!cache_get(&k, &answer)) {
        CB_OK(cb_remote_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
                                                                             dynamicSMemSize, flags));
        cache_put(&k, answer = (uint64_t)*numBlocks);
    }
    *numBlocks = (int)answer;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                            size_t dynamicSMemSize)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize,
                                                                0);
}

EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func,
                                                        int numBlocks, int blockSize)
{
    uint64_t answer;
    const struct cb_function *f = cb_function_of((uintptr_t)func);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!dynamicSmemSize) return CUDA_ERROR_INVALID_VALUE;
    struct key k = {f->serial, cache_question(f, SHARED_LEFT, 0), (uint64_t)numBlocks, (uint64_t)blockSize,
                    0};
    if (!cache_get(&k, &answer)) {
        CB_OK(cb_remote_cuOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize, func, numBlocks, blockSize));
        cache_put(&k, answer = *dynamicSmemSize);
    }
    *dynamicSmemSize = answer;
    return CUDA_SUCCESS;
}

/* Call the program's block size function for every size that the driver may try. */
static void sizes_ask(uint64_t sizes[CB_BLOCK_SIZES], CUoccupancyB2DSize of, const struct cb_function *f,
                      int limit)
{
    int most = (int)f->threads_max;
    if (limit > 0 && limit < most) most = limit;
    for (int i = 1; i < (int)CB_BLOCK_SIZES; i++)
        sizes[i - 1] = 32 * i <= (int)f->threads_max ? of(32 * i) : 0;
    sizes[CB_BLOCK_SIZES - 1] = most > 0 ? of(most) : 0;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                          size_t dynamicSMemSize, int blockSizeLimit,
                                                          unsigned int flags)
{
    struct cb_call call;
    struct cb_function *f = cb_function_of((uintptr_t)func);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!minGridSize || !blockSize) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_function_load_attributes(f));
    uint64_t sizes[CB_BLOCK_SIZES];
    if (blockSizeToDynamicSMemSize) sizes_ask(sizes, blockSizeToDynamicSMemSize, f, blockSizeLimit);
    CB_OK(cb_call_begin(&call, CB_OP_BLOCK_SIZE, CB_IN_CONTEXT));
    cb_put_word(&call, (uintptr_t)func);
    cb_put_word(&call, dynamicSMemSize);
    cb_put_word(&call, (uint64_t)(unsigned int)blockSizeLimit);
    cb_put_word(&call, flags);
    cb_put_word(&call, blockSizeToDynamicSMemSize != NULL);
    if (blockSizeToDynamicSMemSize) cb_put_bytes(&call, sizes, sizeof sizes);
    CB_OK(cb_call_ask(&call));
    *minGridSize = (int)cb_take_word(&call);
    *blockSize = (int)cb_take_word(&call);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                                 CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                 size_t dynamicSMemSize, int blockSizeLimit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                     dynamicSMemSize, blockSizeLimit, 0);
}

static CUresult clusters_ask(int *out, CUfunction func, const CUlaunchConfig *config, bool size)
{
    struct cb_call call;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!cb_function_of((uintptr_t)func)) return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_call_begin(&call, CB_OP_CLUSTERS, CB_IN_CONTEXT));
    cb_put_word(&call, (uintptr_t)func);
    cb_put_word(&call, size);
    cb_put_config(&call, config);
    CB_OK(cb_call_ask(&call));
    *out = (int)cb_take_word(&call);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func, const CUlaunchConfig *config)
{
    return clusters_ask(numClusters, func, config, false);
}

EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int *clusterSize, CUfunction func,
                                                   const CUlaunchConfig *config)
{
    return clusters_ask(clusterSize, func, config, true);
}
