/* NVML of a remote program: a session of its own, in which no driver is initialized. */
#ifndef CALABASH_REMOTE_NVML_H
#define CALABASH_REMOTE_NVML_H

#include "remote/client/connection/call.h"

#include "api/nvml_api.h"
#include "remote/wire/nvml.h"

/* `function` is an enum cb_nvml_function. */
nvmlReturn_t cb_nvml_begin(struct cb_call *c, int function);
/* Return the function's own result; answers without data need no cb_call_end(). */
nvmlReturn_t cb_nvml_ask(struct cb_call *c);
/* Write the next string of the answer to a buffer of the program. */
void cb_nvml_text(struct cb_call *c, char *into, unsigned int capacity);
/* Number of elements of the answer, at most `capacity`. */
uint64_t cb_nvml_taken(struct cb_call *c, uint64_t capacity);

#endif
