/*
 * A root of its own for a simulated node: the directory `root` beside the state file, in which /proc/driver,
 * /proc/devices, /sys/bus/pci, /dev and the driver's libraries lie as a real driver would show them.
 *
 * The tool makes the tree; whoever changes the layout of MIG keeps its capability files and nodes current. A
 * node without that directory has none, and nothing is written.
 */
#ifndef CALABASH_SIM_ROOT_H
#define CALABASH_SIM_ROOT_H

#include "sim/node/state.h"

/* Majors that no driver has been given: opening such a node answers ENXIO whatever the host has. They stand
 * in the tree's own /proc/devices. */
enum { ROOT_MAJOR_GPU = 384, ROOT_MAJOR_UVM = 385, ROOT_MAJOR_CAPS = 386 };

/* How many GPU instances, and compute instances of each, a card has minors for. */
#define ROOT_GI_MAX 15u
#define ROOT_CI_MAX 8u

/* The minor of the capability of a GPU instance, and of compute instance `ci` of it. */
uint32_t root_gi_minor(uint32_t gpu_minor, uint32_t gi);
uint32_t root_ci_minor(uint32_t gpu_minor, uint32_t gi, uint32_t ci);

/* The tree's directory, or -1 when the node has none (or it is not ours). The caller closes it. */
int root_open(const struct sim *s);

/* Write a small file, with the directories above it; `path` is relative to the tree. 0, or -errno. */
int root_write(int root, const char *path, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A character device, or an empty file where this user may not make one. 0, or -errno. */
int root_node(int root, const char *path, uint32_t major, uint32_t minor);

/* The file that names the minor of a capability, and the node. */
int root_capability(int root, const char *path, uint32_t minor);

/* Bring what the tree says of a card's GPU and compute instances up to now. Takes no lock of the node. */
void root_refresh(const struct sim *s, uint32_t device);

#endif
