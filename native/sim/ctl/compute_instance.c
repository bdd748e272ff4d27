/* Faults of a compute instance, and the reboot of a node. */
#include "sim/ctl/compute_instance.h"

#include "sim/ctl/open.h"
#include "sim/node/root_tree.h"
#include "sim/node/slot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define XID_LAST 200u

static uint32_t instance_find(const struct sim *s, const char *uuid, uint32_t *device)
{
    for (uint32_t i = 0; i < s->node->device_count; i++) {
        for (uint32_t k = 0; k < SIM_CI_MAX; k++) {
            const struct sim_ci *c = &s->node->device[i].mig.ci[k];

            if (!c->used || strcasecmp(c->uuid, uuid) != 0) continue;
            *device = i;
            return k;
        }
    }
    simctl_fail("list them with: calabash-simctl show NODE --json", "no MIG device %s", uuid);
}

void simctl_inject_part(struct sim *s, const char *uuid, const char *what, const char *value)
{
    uint32_t device, place = instance_find(s, uuid, &device);

    if (strcmp(what, "xid") == 0 && value != NULL) {
        char *end;
        unsigned long xid = strtoul(value, &end, 10);

        if (*value < '0' || *value > '9' || *end != '\0' || xid == 0 || xid > XID_LAST)
            simctl_fail(NULL, "xid: '%s' is no number from 1 to %u", value, XID_LAST);
        sim_inject_xid_at(s, device, place, (uint32_t)xid, 0);
    } else if (value == NULL && (strcmp(what, "ecc-single") == 0 || strcmp(what, "ecc-double") == 0)) {
        sim_inject_ecc_at(s, device, place, strcmp(what, "ecc-double") == 0);
    } else {
        simctl_fail("xid N, ecc-single, ecc-double", "'%s' does not happen to a MIG device alone", what);
    }
}

void simctl_reboot(const char *path)
{
    struct sim s;
    uint32_t live = 0;

    simctl_open(&s, path);
    sim_sweep(&s, 0);
    for (uint32_t i = 0; i < sim_procs_used(s.node); i++)
        live += s.node->proc[i].state == SIM_SLOT_LIVE;
    if (live > 0)
        simctl_fail("end them first", "%u process%s still use%s this node", live, live == 1 ? "" : "es",
                    live == 1 ? "s" : "");
    s.node->boot_id[0] = '\0'; /* the next process that opens it sees another boot */
    simctl_open(&s, path);
    for (uint32_t i = 0; i < s.node->device_count; i++)
        root_refresh(&s, i);
}
