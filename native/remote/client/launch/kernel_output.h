/* Output of kernels, written to the program's own standard output. */
#ifndef CALABASH_REMOTE_CLIENT_LAUNCH_KERNEL_OUTPUT_H
#define CALABASH_REMOTE_CLIENT_LAUNCH_KERNEL_OUTPUT_H

/* Start receiving it. */
void cb_output_begin(void);

#endif
