/*
 * Functions that are not implemented: they return NVML_ERROR_NOT_SUPPORTED, and are counted by name for
 * `calabash-simctl unserved`.
 */
#include "sim/nvml/core.h"

#include "api/sim_nvml_stubs.h"

static const char *const names[] = {
#define NAME(function) #function,
    CB_NVML_API(NAME)};

nvmlReturn_t cb_sim_nvml_unserved(int function)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    if (function >= 0 && function < CB_NVML_COUNT) sim_count_unserved(s, names[function], false);
    return NVML_ERROR_NOT_SUPPORTED;
}
