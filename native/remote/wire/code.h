/* What both ends know of images, kernels and the options of the compiler. */
#ifndef CALABASH_REMOTE_CODE_H
#define CALABASH_REMOTE_CODE_H

#define CB_PARAMETERS_MAX      512u
#define CB_FUNCTION_ATTRIBUTES 16u /* CU_FUNC_ATTRIBUTE_MAX of CUDA 13 */
#define CB_JIT_MAX             48u /* options of one load */
#define CB_JIT_LOG_MAX         (64u << 10)
#define CB_LAUNCH_ATTRIBUTES   32u
#define CB_BLOCK_SIZES         33u /* of which the dynamic shared memory is told: 32, 64, ... and the limit */

/* How a load, or a step of the linker, has ended. */
enum cb_code_state {
    CB_CODE_FAILED, /* as the result says */
    CB_CODE_DONE,
    CB_CODE_UNKNOWN, /* the worker has no image of this hash: it is to be sent, and the command given again */
};

#endif
