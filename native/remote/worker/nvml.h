/* NVML at the worker, for its program. Devices are numbered from 1, as that NVML enumerates them. */
#ifndef CALABASH_REMOTE_WORKER_NVML_H
#define CALABASH_REMOTE_WORKER_NVML_H

#include "remote/worker/request.h"

#include "api/nvml_api.h"
#include "remote/wire/nvml.h"

/* The library's function; a missing one returns NVML_ERROR_FUNCTION_NOT_FOUND. */
#define CB_NVML_CALL(name) ((cb_fn_##name)cb_nvml_library[CB_NVML_##name])
extern void *cb_nvml_library[CB_NVML_COUNT];

typedef CUresult (*cb_nvml_served)(struct cb_request *q);
extern const cb_nvml_served cb_nvml_handlers[CB_NVML_COUNT]; /* generated */
extern const char *const cb_nvml_names[CB_NVML_COUNT];

/* The device of a number in the request; an unknown number gives a handle that the library refuses. */
nvmlDevice_t cb_nvml_device(struct cb_request *q);
uint64_t cb_nvml_number(nvmlDevice_t device); /* 0: the device has no number */
/* Memory for an array, to be freed by the caller; NULL for none. The request is bad if it is too large. */
void *cb_nvml_array(struct cb_request *q, uint64_t count, size_t bytes);
/* Put the number of elements that follow. */
uint64_t cb_nvml_given(struct cb_request *q, uint64_t count, uint64_t capacity);

#endif
