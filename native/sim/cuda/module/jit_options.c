/* Compiler options of loading and linking: log buffers and limits. */
#include "sim/cuda/module/jit_options.h"

static size_t option_value(unsigned int count, const CUjit_option *options, void *const *values,
                           CUjit_option which)
{
    for (unsigned int i = 0; i < count; i++) {
        if (options[i] == which) return (uint32_t)(uintptr_t)values[i];
    }
    return 0;
}

static void log_write(unsigned int count, const CUjit_option *options, void **values, CUjit_option buffer,
                      CUjit_option size, const char *text)
{
    size_t capacity = option_value(count, options, values, size), length = strlen(text), written = 0;
    for (unsigned int i = 0; i < count; i++) {
        if (options[i] != buffer || !values[i] || !capacity) continue;
        size_t n = length < capacity ? length : capacity - 1;
        memcpy(values[i], text, n);
        ((char *)values[i])[n] = 0;
        written = n ? n + 1 : 0;
    }
    for (unsigned int i = 0; i < count; i++) {
        if (options[i] == size) values[i] = (void *)(uintptr_t)written;
    }
}

uint32_t jit_registers(unsigned int count, const CUjit_option *options, void *const *values)
{
    return (uint32_t)option_value(count, options, values, CU_JIT_MAX_REGISTERS);
}

void jit_write_logs(unsigned int count, const CUjit_option *options, void **values, const struct report *r)
{
    log_write(count, options, values, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, r->notes);
    log_write(count, options, values, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, r->errors);
    for (unsigned int i = 0; i < count; i++) {
        if (options[i] != CU_JIT_WALL_TIME) continue;
        float zero = 0;
        memcpy(&values[i], &zero, sizeof zero);
    }
}
