/* State of a launch, and its interface to the driver. */
#ifndef CALABASH_SIM_PTX_RUN_H
#define CALABASH_SIM_PTX_RUN_H

#include "sim/ptx/program.h"

/* Results of a launch, numbered as in the driver API. */
enum {
    RUN_OK = 0,
    RUN_OUT_OF_MEMORY = 2,
    RUN_ILLEGAL_ADDRESS = 700,
    RUN_ASSERT = 710,
    RUN_MISALIGNED = 716,
    RUN_ILLEGAL_INSTRUCTION = 715,
    RUN_INVALID_PC = 718,
    RUN_FAILED = 719,
    RUN_NOT_SUPPORTED = 801,
};

struct span { /* [base, end) may be accessed */
    uint64_t base, end;
};

struct surroundings {
    void *user;
    /* Find the memory of the card, or mapped memory, at this address; return false if there is none. */
    bool (*memory)(void *user, uint64_t address, struct span *out);
    bool (*cancelled)(void *user);
    void (*print)(void *user, const char *text, size_t length);
    void (*print_error)(void *user, const char *text, size_t length); /* what goes to stderr */
    uint64_t (*take)(void *user, uint64_t bytes);                     /* the device's heap */
    void (*give)(void *user, uint64_t address);
};

/* A program with its variables placed. */
struct placed {
    const struct program *program;
    uint8_t *constant;
    uint64_t *address; /* by variable */
};

struct launch_shape {
    uint32_t grid[3], block[3];
    uint32_t dynamic_shared_bytes;
    bool cooperative;
    uint32_t sm_count;
    uint32_t version; /* of the target */
};

struct run {
    const struct routine *entry;
    const struct placed *placed;
    const struct surroundings *around;
    struct launch_shape shape;
    const uint8_t *parameters;
    uint64_t number; /* of the grid */
    uint64_t next_block, block_count, blocks_done;
    int fault;
    bool stop;
    char failure_text[256];
    uint64_t ops, bytes; /* operations of warps and bytes of global memory that the launch used */
    uint64_t grid_arrived, grid_phase,
        grid_gone; /* threads at the grid's barrier, number of barriers, threads that ended */
};

#endif
