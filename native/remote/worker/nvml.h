/* NVML beside the worker, for its program. Devices are numbered as that NVML enumerates them, from 1. */
#ifndef CALABASH_REMOTE_WORKER_NVML_H
#define CALABASH_REMOTE_WORKER_NVML_H

#include "remote/worker/request.h"

#include "api/nvml_api.h"
#include "remote/wire/nvml.h"

/* The library's function; one that it does not have answers NVML_ERROR_FUNCTION_NOT_FOUND. */
#define CB_NVML_CALL(name) ((cb_fn_##name)cb_nvml_library[CB_NVML_##name])
extern void *cb_nvml_library[CB_NVML_COUNT];

typedef CUresult (*cb_nvml_served)(struct cb_request *q);
extern const cb_nvml_served cb_nvml_handlers[CB_NVML_COUNT]; /* generated */
extern const char *const cb_nvml_names[CB_NVML_COUNT];

/* The device that a number of the request means; one that there is not is not a device to the library either. */
nvmlDevice_t cb_nvml_device(struct cb_request *q);
uint64_t cb_nvml_number(nvmlDevice_t device); /* 0: it has none */
/* Room for an array, to be freed; NULL for none. The request is bad when it is too large. */
void *cb_nvml_array(struct cb_request *q, uint64_t count, size_t bytes);
/* Tell how many elements follow. */
uint64_t cb_nvml_given(struct cb_request *q, uint64_t count, uint64_t room);

#endif
