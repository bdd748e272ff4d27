#include "remote/worker/jit_options.h"

/* Number of the log that an option concerns: 0, 1, or -1. */
static int log_buffer_number(CUjit_option o)
{
    return o == CU_JIT_INFO_LOG_BUFFER ? 0 : o == CU_JIT_ERROR_LOG_BUFFER ? 1 : -1;
}

static int log_size_number(CUjit_option o)
{
    return o == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ? 0 : o == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES ? 1 : -1;
}

/* Options that hold addresses of the program are not sent. */
static bool option_is_word(CUjit_option o)
{
    return (unsigned)o < CU_JIT_NUM_OPTIONS &&
           (o < CU_JIT_GLOBAL_SYMBOL_NAMES || o > CU_JIT_GLOBAL_SYMBOL_COUNT) &&
           (o < CU_JIT_REFERENCED_KERNEL_NAMES || o > CU_JIT_REFERENCED_VARIABLE_COUNT);
}

void cb_jit_take(struct cb_request *q, struct cb_jit *j)
{
    uint64_t count = cb_take_word(q);
    memset(j, 0, sizeof *j);
    if (count > CB_JIT_MAX) q->bad = true;
    for (uint64_t i = 0; i < count && !q->bad; i++) {
        j->option[i] = (CUjit_option)cb_take_word(q);
        j->value[i] = (void *)(uintptr_t)cb_take_word(q);
        if (!option_is_word(j->option[i])) q->bad = true;
        int s = log_size_number(j->option[i]);
        if (s < 0) continue;
        uintptr_t wanted = (uint32_t)(uintptr_t)j->value[i];
        j->capacity[s] = wanted > CB_JIT_LOG_MAX ? CB_JIT_LOG_MAX : (unsigned int)wanted;
        j->value[i] = (void *)(uintptr_t)j->capacity[s];
    }
    j->count = q->bad ? 0 : (unsigned int)count;
    for (unsigned int i = 0; i < j->count; i++) {
        int b = log_buffer_number(j->option[i]);
        if (b < 0) continue;
        if (!j->log[b]) j->log[b] = calloc(1, CB_JIT_LOG_MAX + 1);
        j->value[i] = j->value[i] ? j->log[b] : NULL;
    }
}

void cb_jit_give(struct cb_request *q, const struct cb_jit *j)
{
    for (unsigned int i = 0; i < j->count; i++) {
        int b = log_buffer_number(j->option[i]);
        if (b < 0)
            cb_give_word(q, (uintptr_t)j->value[i]);
        else
            cb_give_string(q, j->value[i] ? j->log[b] : "");
    }
}

void cb_jit_free(struct cb_jit *j)
{
    free(j->log[0]);
    free(j->log[1]);
    j->log[0] = j->log[1] = NULL;
}
