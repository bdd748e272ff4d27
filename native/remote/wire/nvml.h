/* Bounds of what NVML's functions take and give. */
#ifndef CALABASH_REMOTE_WIRE_NVML_H
#define CALABASH_REMOTE_WIRE_NVML_H

#define CB_NVML_ARRAY_MAX 1024u
#define CB_NVML_TEXT_MAX  1024u

#endif
