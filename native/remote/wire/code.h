/* Limits and states of images, kernels and compiler options that both ends share. */
#ifndef CALABASH_REMOTE_CODE_H
#define CALABASH_REMOTE_CODE_H

#define CB_PARAMETERS_MAX      512u
#define CB_FUNCTION_ATTRIBUTES 16u /* CU_FUNC_ATTRIBUTE_MAX of CUDA 13 */
#define CB_JIT_MAX             48u /* options of one load */
#define CB_JIT_LOG_MAX         (64u << 10)
#define CB_LAUNCH_ATTRIBUTES   32u
/* sizes for which the dynamic shared memory is sent: 32, 64, ... and the limit */
#define CB_BLOCK_SIZES 33u

/* Outcome of a load, or of a step of the linker. */
enum cb_code_state {
    CB_CODE_FAILED, /* the result has the error */
    CB_CODE_DONE,
    CB_CODE_UNKNOWN, /* the worker has no image of this hash: send the image and repeat the command */
};

#endif
