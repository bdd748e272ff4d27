/* NVML of a program whose cards are elsewhere: a session of its own, in which no driver is initialized. */
#ifndef CALABASH_REMOTE_NVML_H
#define CALABASH_REMOTE_NVML_H

#include "remote/client/connection/call.h"

#include "api/nvml_api.h"
#include "remote/wire/nvml.h"

/* `function` is an enum cb_nvml_function. */
nvmlReturn_t cb_nvml_begin(struct cb_call *c, int function);
/* The function's own result; answers that are not looked at need no end. */
nvmlReturn_t cb_nvml_ask(struct cb_call *c);
/* The next string of the answer into a buffer of the program's. */
void cb_nvml_text(struct cb_call *c, char *into, unsigned int room);
/* How many elements the answer has, never more than there is room for. */
uint64_t cb_nvml_taken(struct cb_call *c, uint64_t room);

#endif
