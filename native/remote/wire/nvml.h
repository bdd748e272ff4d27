/* Limits of the inputs and outputs of NVML's functions. */
#ifndef CALABASH_REMOTE_WIRE_NVML_H
#define CALABASH_REMOTE_WIRE_NVML_H

#define CB_NVML_ARRAY_MAX 1024u
#define CB_NVML_TEXT_MAX  1024u

#endif
