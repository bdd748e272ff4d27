/* Output of kernels. What does not fit any more is lost, as in the device's own buffer. */
#include "sim/cuda/launch/kernel_output.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUTPUT_MAX (1u << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *kept;
static size_t used, room;

void output_add(const char *text, size_t length)
{
    pthread_mutex_lock(&lock);
    if (used + length > room && used + length <= OUTPUT_MAX) {
        size_t more = 2 * (used + length) < OUTPUT_MAX ? 2 * (used + length) : OUTPUT_MAX;
        char *bigger = realloc(kept, more);
        if (bigger) {
            kept = bigger;
            room = more;
        }
    }
    if (used + length <= room) {
        memcpy(kept + used, text, length);
        __atomic_store_n(&used, used + length, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
}

void output_flush(void)
{
    if (!__atomic_load_n(&used, __ATOMIC_RELAXED)) return;
    pthread_mutex_lock(&lock);
    fwrite(kept, 1, used, stdout);
    __atomic_store_n(&used, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    fflush(stdout);
}
