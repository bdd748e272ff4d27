/* Encoding of launch attributes. */
#ifndef CALABASH_REMOTE_CLIENT_LAUNCH_LAUNCH_ATTRIBUTES_H
#define CALABASH_REMOTE_CLIENT_LAUNCH_LAUNCH_ATTRIBUTES_H

#include "remote/client/connection/call.h"

/* Put grid, block, shared memory and stream, then the attributes. */
void cb_put_config(struct cb_call *c, const CUlaunchConfig *config);
/* NULL: it has no attribute of that ID. */
const CUlaunchAttributeValue *cb_config_attribute(const CUlaunchConfig *config, CUlaunchAttributeID id);

#endif
