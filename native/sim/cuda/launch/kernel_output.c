/* Buffer of kernel output. Output beyond its size is lost, as in a device's own buffer. */
#include "sim/cuda/launch/kernel_output.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUTPUT_MAX (1u << 20)

static pthread_mutex_t output_lock = PTHREAD_MUTEX_INITIALIZER;
static char *output_text;
static size_t output_length, output_capacity;

void output_add(const char *text, size_t length)
{
    pthread_mutex_lock(&output_lock);
    if (output_length + length > output_capacity && output_length + length <= OUTPUT_MAX) {
        size_t more = 2 * (output_length + length) < OUTPUT_MAX ? 2 * (output_length + length) : OUTPUT_MAX;
        char *bigger = realloc(output_text, more);
        if (bigger) {
            output_text = bigger;
            output_capacity = more;
        }
    }
    if (output_length + length <= output_capacity) {
        memcpy(output_text + output_length, text, length);
        __atomic_store_n(&output_length, output_length + length, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&output_lock);
}

void output_flush(void)
{
    if (!__atomic_load_n(&output_length, __ATOMIC_RELAXED)) return;
    pthread_mutex_lock(&output_lock);
    fwrite(output_text, 1, output_length, stdout);
    __atomic_store_n(&output_length, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&output_lock);
    fflush(stdout);
}
