/*
 * Output of kernels: the driver writes it to the worker's standard output, from where it is sent to the
 * program.
 */
#ifndef CALABASH_REMOTE_WORKER_OUTPUT_H
#define CALABASH_REMOTE_WORKER_OUTPUT_H

#include <stdbool.h>

/* Replace standard output by a file in memory. Call it before the sandbox is entered. */
bool cb_output_open(void);
/* Send what was written since the last call, before the next answer. */
void cb_output_send(void);

#endif
