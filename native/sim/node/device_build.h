/* Construction of the devices of a node file from a list of cards, and checks of a node file. */
#ifndef CALABASH_SIM_NODE_DEVICE_BUILD_H
#define CALABASH_SIM_NODE_DEVICE_BUILD_H

#include "sim/node/card.h"
#include "sim/node/state.h"

/* Random numbers from a seed: the same seed builds the same node. */
struct card_random {
    uint64_t state;
};

/* Describe `count` cards of one node: identities from `random`, PCI addresses, NUMA nodes, NVLink wiring. */
void card_build(struct sim_device *devices, const struct card *const *list, uint32_t count,
                struct card_random *random);

/*
 * NUMA node of the memory of a card that shares page tables and caches with the CPU, as on GH200 and GB200; -1
 * for every other card.
 */
int32_t sim_memory_node(const struct sim_profile *profile);

/* The card model of a device of a node file; NULL if the file names an unknown one. */
const struct card *card_of(const struct sim_device *device);

/* A short description of the first error in the fixed part of a mapped node file; NULL if there is none. */
const char *card_check_node(const struct sim_node *node);

#endif
