/* Tables that cuGetExportTable returns: one of our own, and none of NVIDIA's. */
#ifndef CALABASH_REMOTE_CLIENT_API_EXPORT_TABLE_H
#define CALABASH_REMOTE_CLIENT_API_EXPORT_TABLE_H

#include "remote/client/connection/command_buffer.h"

/* Traffic counters, for tests and benchmarks; found by the UUID c0a1aba5-0001-4c6f-9d2e-5ca1ab1e0001. */
struct cb_counters_table {
    size_t bytes; /* of the table */
    const struct cb_counters *counters;
};

#endif
