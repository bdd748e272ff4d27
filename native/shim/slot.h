/* Opening and checking the slot's files; see slot.c. */
#ifndef CALABASH_SHIM_SLOT_H
#define CALABASH_SHIM_SLOT_H

#include "page/page.h"
#include <stdbool.h>

struct cb_slot_files {
    const struct cb_limits *limits;
    struct cb_usage *usage;
    int lease_fd; /* -1: the slot has no lease */
};
/* Whether a process is of the allocation that this one is of, as far as control groups tell. */
bool cb_slot_holds(int32_t pid);
bool cb_slot_open(struct cb_slot_files *files); /* false after cb_say */

#endif
