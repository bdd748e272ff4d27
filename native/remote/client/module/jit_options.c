#include "remote/client/module/jit_options.h"

#include "remote/wire/code.h"

static bool option_is_log(CUjit_option o)
{
    return o == CU_JIT_INFO_LOG_BUFFER || o == CU_JIT_ERROR_LOG_BUFFER;
}

/* Lists of names and of addresses of this process, which are obsolete and not sent. */
static bool option_is_list(CUjit_option o)
{
    return (o >= CU_JIT_GLOBAL_SYMBOL_NAMES && o <= CU_JIT_GLOBAL_SYMBOL_COUNT) ||
           (o >= CU_JIT_REFERENCED_KERNEL_NAMES && o <= CU_JIT_REFERENCED_VARIABLE_COUNT);
}

static bool option_is_output(CUjit_option o)
{
    return o == CU_JIT_THREADS_PER_BLOCK || o == CU_JIT_WALL_TIME || o == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
           o == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
}

CUresult cb_jit_check(const struct cb_jit *j)
{
    if (!j->count) return CUDA_SUCCESS;
    if (!j->option || !j->value || j->count > CB_JIT_MAX) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < j->count; i++) {
        if (option_is_list(j->option[i])) return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

void cb_jit_put(struct cb_call *c, const struct cb_jit *j)
{
    cb_put_word(c, j ? j->count : 0);
    for (unsigned int i = 0; j && i < j->count; i++) {
        cb_put_word(c, (uint64_t)j->option[i]);
        cb_put_word(c, option_is_log(j->option[i]) ? j->value[i] != NULL : (uintptr_t)j->value[i]);
    }
}

/* Size of the program's buffer of this log; 0: not given. */
static size_t log_capacity(const struct cb_jit *j, const size_t *capacities, CUjit_option log)
{
    for (unsigned int i = 0; i < j->count; i++) {
        if (j->option[i] == log + 1)
            return capacities[i]; /* the number of the size option follows that of the log */
    }
    return 0;
}

static void log_write(char *buffer, size_t capacity, const char *text)
{
    size_t length = text ? strlen(text) : 0;
    if (!buffer || !capacity) return;
    if (length >= capacity) length = capacity - 1;
    memcpy(buffer, text ? text : "", length);
    buffer[length] = 0;
}

void cb_jit_take(struct cb_call *c, const struct cb_jit *j)
{
    size_t capacities[CB_JIT_MAX];
    for (unsigned int i = 0; j && i < j->count; i++)
        /* read before it becomes the number of bytes written */
        capacities[i] = (uint32_t)(uintptr_t)j->value[i];
    for (unsigned int i = 0; j && i < j->count; i++) {
        if (option_is_log(j->option[i])) {
            log_write(j->value[i], log_capacity(j, capacities, j->option[i]), cb_take_string(c));
            continue;
        }
        uint64_t told = cb_take_word(c);
        if (option_is_output(j->option[i])) j->value[i] = (void *)(uintptr_t)told;
    }
}
