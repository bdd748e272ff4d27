/* Opening and checking of the slot's files; see slot.c. */
#ifndef CALABASH_SHIM_SLOT_H
#define CALABASH_SHIM_SLOT_H

#include "page/page.h"
#include <stdbool.h>

struct cb_slot_files {
    const struct cb_limits *limits;
    struct cb_usage *usage;
    int lease_fd; /* -1: the slot has no lease */
};
/* Return true if a process is in the same allocation as this one, as far as control groups tell. */
bool cb_slot_holds(int32_t pid);
bool cb_slot_open(struct cb_slot_files *files); /* return false after a message by cb_say */

#endif
