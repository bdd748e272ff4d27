/*
 * Reset of a card. It is refused while a process has a context on the card; afterwards pending remappings are
 * in force.
 */
#include "sim/ctl/reset.h"

#include "sim/ctl/open.h"
#include "sim/node/card.h"
#include "sim/node/slot.h"

void simctl_clear_faults(struct sim_faults *f)
{
    f->slow_permille = 0;
    f->alloc_fail_countdown = 0;
    f->alloc_fail_permille = 0;
    f->temperature_c = 0;
    f->throttle_reasons = 0;
    f->hang_until_ns = 0;
    f->ecc_volatile_sbe = f->ecc_volatile_dbe = 0;
    f->remapped_rows_uncorrectable += f->remapped_rows_pending;
    f->remapped_rows_pending = 0;
    f->retired_pages_pending = 0;
    f->nvlinks_down = 0;
}

static uint32_t context_owner_count(const struct sim_node *n, uint32_t device)
{
    uint32_t users = 0;

    for (uint32_t i = 0; i < sim_procs_used(n); i++)
        users += n->proc[i].state == SIM_SLOT_LIVE && n->proc[i].device[device].context_count > 0;
    return users;
}

void simctl_reset(struct sim *s, uint32_t device)
{
    struct sim_device *d = &s->node->device[device];

    const struct card *card = card_find(d->profile.model);
    uint32_t peers = d->profile.nvlink_peer_mask, links = d->profile.nvlink_links_per_peer;

    if (card != NULL && (uint32_t)__builtin_popcount(peers) * links > card->nvlink_count)
        peers = 0; /* connected by a switch */
    sim_sweep(s, 0);
    for (uint32_t i = 0; i < s->node->device_count; i++) {
        uint32_t users = i == device || peers >> i & 1 ? context_owner_count(s->node, i) : 0;

        if (users > 0)
            simctl_fail("end them first", "device %u is in use by %u process%s", i, users,
                        users == 1 ? "" : "es");
    }
    if (d->faults.lost) simctl_fail("restart the machine", "device %u has fallen off the bus", device);
    sim_lock_device(s, device);
    simctl_clear_faults(&d->faults);
    sim_unlock_device(s, device);
}
