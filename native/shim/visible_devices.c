/*
 * Visible devices: the devices of the slot that this container may see.
 *
 * The slot has all that a claim was allocated. A container that names some requests of the claim has a variable
 * CALABASH_REQUEST_<n> for each, a list of device numbers of the slot, and sees the devices that any of them
 * names; a container without such a variable sees all. The variables only narrow visibility: limits are those
 * of the slot, and a number that the slot does not have is ignored.
 *
 * A container with slots of two claims would find only one of them. Each claim has a variable
 * CALABASH_CLAIM_<uid> of its own, so that this is detected and refused.
 */
#define _GNU_SOURCE
#include "shim/visible_devices.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(CB_DEVICES_MAX <= 32, "a device is a bit");

#define CLAIM   "CALABASH_CLAIM_"
#define REQUEST "CALABASH_REQUEST_"

static uint32_t device_bits_of_list(const char *list, uint32_t device_count)
{
    uint32_t places = 0;
    for (const char *at = list; isdigit((unsigned char)*at);) {
        char *end = NULL;
        unsigned long place = strtoul(at, &end, 10);
        if (place < device_count) places |= 1u << place;
        at = *end == ',' ? end + 1 : end;
    }
    return places;
}

bool cb_shown_learn(uint32_t device_count)
{
    uint32_t all = device_count >= 32 ? UINT32_MAX : (1u << device_count) - 1, named = 0;
    const char *claim = NULL;
    bool names = false;
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++) {
        const char *value = strchr(*variable, '=');
        if (value == NULL) continue;
        if (strncmp(*variable, CLAIM, sizeof(CLAIM) - 1) == 0) {
            if (claim != NULL) {
                cb_say("this container has the claims %s and %s, but the slot of only one of them; "
                       "hint: put both requests into one claim",
                       claim, value + 1);
                return false;
            }
            claim = value + 1;
        } else if (strncmp(*variable, REQUEST, sizeof(REQUEST) - 1) == 0) {
            names = true;
            named |= device_bits_of_list(value + 1, device_count);
        }
    }
    cb.shown = names ? named : all;
    return true;
}
