/* Client side of the multi-process service. */
#ifndef CALABASH_SIM_CUDA_PROCESS_MPS_CLIENT_H
#define CALABASH_SIM_CUDA_PROCESS_MPS_CLIENT_H

#include "sim/cuda/process/call.h"

/*
 * Join the server that the control daemon of the pipe directory names; without a daemon this process runs
 * without the service. Waits as long as the daemon makes it wait.
 */
CUresult mps_connect(void);

/*
 * Return true if a client may see a device of the node: its server has it. `ci`: the compute instance, NULL for
 * a whole card.
 */
bool mps_shows(uint32_t index, uint32_t ci_id, bool divided);

#endif
