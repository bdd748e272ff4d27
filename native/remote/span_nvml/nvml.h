/* NVML of a span: the devices of all servers, in the order of the sessions. */
#ifndef CALABASH_REMOTE_SPAN_NVML_H
#define CALABASH_REMOTE_SPAN_NVML_H

#include "remote/span/session.h"

#include "api/nvml_api.h"

#define SPAN_NVML(session, name) ((cb_fn_##name)span_nvml_function(session, CB_NVML_##name))

extern unsigned int span_nvml_users; /* number of nvmlInit calls without nvmlShutdown */

void *span_nvml_function(const struct span_session *s, int function);
/* NULL: no session. */
const struct span_session *span_nvml_first(void);
const struct span_session *span_nvml_of(nvmlDevice_t device);
unsigned int span_nvml_devices(const struct span_session *s);
/* Conversion of a device handle to the session's, and to the program's. */
nvmlDevice_t span_nvml_inner(nvmlDevice_t device);
nvmlDevice_t span_nvml_outer(const struct span_session *s, nvmlDevice_t device);

#endif
