#include "remote/worker/generated.h"
#include "remote/worker/launch.h"

/* Results of the program's block size function, for the driver's calls. */
static uint64_t shared_sizes[CB_BLOCK_SIZES];

static size_t CUDA_CB shared_size_of_block(int block)
{
    if (block <= 0 || block > 32 * ((int)CB_BLOCK_SIZES - 1)) return 0;
    return block % 32 ? shared_sizes[CB_BLOCK_SIZES - 1] : shared_sizes[block / 32 - 1];
}

CUresult cb_on_BLOCK_SIZE(struct cb_request *q)
{
    int grid = 0, block = 0;
    CUfunction f = cb_take_function(q);
    size_t dynamic = cb_take_word(q);
    int limit = (int)cb_take_word(q);
    unsigned int flags = (unsigned int)cb_take_word(q);
    bool asked = cb_take_word(q) != 0;
    if (asked) cb_take_bytes(q, shared_sizes, sizeof shared_sizes);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = CB_CALL(cuOccupancyMaxPotentialBlockSizeWithFlags)(
        &grid, &block, f, asked ? shared_size_of_block : NULL, dynamic, limit, flags);
    cb_give_word(q, (uint64_t)grid);
    cb_give_word(q, (uint64_t)block);
    return result;
}

CUresult cb_on_CLUSTERS(struct cb_request *q)
{
    struct cb_config c;
    int found = 0;
    CUfunction f = cb_take_function(q);
    bool size = cb_take_word(q) != 0;
    cb_take_config(q, &c);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    CUresult result = size ? CB_CALL(cuOccupancyMaxPotentialClusterSize)(&found, f, &c.config)
                           : CB_CALL(cuOccupancyMaxActiveClusters)(&found, f, &c.config);
    cb_give_word(q, (uint64_t)found);
    return result;
}
