/* Output of kernels: kept until the program waits for the card. */
#ifndef CALABASH_SIM_CUDA_LAUNCH_KERNEL_OUTPUT_H
#define CALABASH_SIM_CUDA_LAUNCH_KERNEL_OUTPUT_H

#include <stddef.h>

void output_add(const char *text, size_t length);
/* Write it to standard output. */
void output_flush(void);

#endif
