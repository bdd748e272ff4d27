/* What kernels print: the driver writes it to our standard output, and it is the program's. */
#ifndef CALABASH_REMOTE_WORKER_OUTPUT_H
#define CALABASH_REMOTE_WORKER_OUTPUT_H

#include <stdbool.h>

/* From here on standard output is a file in memory. Before the sandbox is entered. */
bool cb_output_open(void);
/* What was written since the last call goes to the program, before whatever is answered next. */
void cb_output_send(void);

#endif
