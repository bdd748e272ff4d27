/* From a list of cards to the devices of a node file, and back. */
#ifndef CALABASH_SIM_BUILD_H
#define CALABASH_SIM_BUILD_H

#include "sim/node/card.h"
#include "sim/node/state.h"

/* A stream of numbers from a seed: the same seed builds the same node. */
struct card_random {
    uint64_t state;
};

/* Describe `count` cards of one node: identities from `random`, places on the PCI bus, NUMA nodes, NVLink
 * wiring. */
void card_build(struct sim_device *devices, const struct card *const *list, uint32_t count,
                struct card_random *random);

/* The NUMA node that a card's memory is where the CPU and it share page tables and caches, as on GH200 and GB200; -1 for
 * every other card. */
int32_t sim_memory_node(const struct sim_profile *profile);

/* The card that a device of a node file is; NULL when the file names none we know. */
const struct card *card_of(const struct sim_device *device);

/* What is wrong with the fixed part of a mapped node file, in a few words; NULL when it is sound. */
const char *card_check_node(const struct sim_node *node);

#endif
