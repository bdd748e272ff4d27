/*
 * A private root directory of a simulated node: the directory `root` beside the state file, with /proc/driver,
 * /proc/devices, /sys/bus/pci, /dev and the driver's libraries as with a real driver.
 *
 * The tool makes the tree; a process that changes the MIG layout updates its capability files and device nodes.
 * If a node has no such directory, nothing is written.
 */
#ifndef CALABASH_SIM_NODE_ROOT_TREE_H
#define CALABASH_SIM_NODE_ROOT_TREE_H

#include "sim/node/state.h"

/*
 * Device majors that no driver has: opening such a node returns ENXIO on any host. They are listed in the
 * tree's own /proc/devices.
 */
enum { ROOT_MAJOR_GPU = 384, ROOT_MAJOR_UVM = 385, ROOT_MAJOR_CAPS = 386 };

/* Numbers of GPU instances of a card, and of compute instances of each, that have minors. */
#define ROOT_GI_MAX 15u
#define ROOT_CI_MAX 8u

/* Minor of the capability of a GPU instance, and of compute instance `ci` of it. */
uint32_t root_gi_minor(uint32_t gpu_minor, uint32_t gi);
uint32_t root_ci_minor(uint32_t gpu_minor, uint32_t gi, uint32_t ci);

/* Open the tree's directory; -1 if the node has none (or it has another owner). The caller closes it. */
int root_open(const struct sim *s);

/* Write a small file, with the directories above it; `path` is relative to the tree. Return 0, or -errno. */
int root_write(int root, const char *path, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Make a character device, or an empty file if this user may not make one. Return 0, or -errno. */
int root_node(int root, const char *path, uint32_t major, uint32_t minor);

/* Write the file with the minor of a capability, and make its node. */
int root_capability(int root, const char *path, uint32_t minor);

/* Update the tree to a card's present GPU and compute instances. Takes no lock of the node. */
void root_refresh(const struct sim *s, uint32_t device);

#endif
