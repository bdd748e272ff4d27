/* The state of a node, as a table. */
#include "sim/ctl/show.h"

#include "sim/ctl/open.h"
#include "sim/node/device_build.h"
#include "sim/node/engine.h"
#include "sim/node/slot.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void simctl_refresh(struct sim *s)
{
    sim_sweep(s, 0);
    for (uint32_t i = 0; i < s->node->device_count; i++) {
        sim_lock_device(s, i);
        engine_advance_all(s, i, sim_now());
        sim_unlock_device(s, i);
    }
}

static void show_state(const struct sim_device *d)
{
    const struct sim_faults *f = &d->faults;

    printf("  %s%s", f->lost ? "lost" : "ok", d->mig.mode ? " mig" : "");
    if (f->xid_count) printf(" xid:%u", f->xid[(f->xid_count - 1) % SIM_XIDS_MAX].xid);
    if (f->xid_count > 1) printf("(%" PRIu64 ")", f->xid_count);
    if (f->ecc_volatile_dbe) printf(" ecc-double:%" PRIu64, f->ecc_volatile_dbe);
    if (f->slow_permille && f->slow_permille != 1000) printf(" slow:%u%%", f->slow_permille / 10);
    if (f->alloc_fail_countdown > 0 || f->alloc_fail_permille) printf(" alloc-fail");
    if (f->throttle_reasons) printf(" throttled");
    if (f->hang_until_ns > sim_now()) printf(" hangs");
    putchar('\n');
}

static void show_cards(const struct sim_node *node)
{
    printf("%-4s %-22s %-17s %19s %10s %8s  %s\n", "GPU", "NAME", "PCI", "MEMORY MiB", "PEAK MiB", "BUSY s",
           "STATE");
    for (uint32_t i = 0; i < node->device_count; i++) {
        const struct sim_device *d = &node->device[i];
        const struct sim_profile *p = &d->profile;

        printf("%-4u %-22s %08X:%02X:%02X.0 %8" PRIu64 " / %8" PRIu64 " %10" PRIu64 " %8.2f", i, p->name,
               p->pci_domain, p->pci_bus, p->pci_device, d->used_bytes / CARD_MIB,
               p->memory_total_bytes / CARD_MIB, d->alloc_peak_bytes / CARD_MIB,
               (double)d->engine.busy_ns / 1e9);
        show_state(d);
    }
}

static void show_processes(struct sim *s)
{
    const struct sim_node *node = s->node;

    for (uint32_t i = 0; i < sim_procs_used(node); i++) {
        const struct sim_proc *p = &node->proc[i];

        if (p->state != SIM_SLOT_LIVE) continue;
        printf("process %d  %.200s\n", (int)sim_process_pid(s, i), p->name);
        for (uint32_t k = 0; k < node->device_count; k++)
            if (p->device[k].context_count > 0)
                printf("    GPU %u: %" PRIu64 " MiB, busy %.2f s\n", k,
                       (p->device[k].alloc_bytes + p->device[k].context_bytes) / CARD_MIB,
                       (double)p->device[k].busy_ns / 1e9);
    }
}

static uint32_t count_unserved(const struct sim_node *node, bool kernel)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < node->unserved_count; i++)
        count += (node->unserved[i].kernel != 0) == kernel;
    return count;
}

static void list_unserved(const struct sim_node *node, bool kernel)
{
    if (count_unserved(node, kernel) == 0) return;
    printf("%s\n", kernel ? "kernels that the simulation does not know (launches):"
                          : "functions that the simulation does not serve (calls):");
    for (uint32_t i = 0; i < node->unserved_count; i++)
        if ((node->unserved[i].kernel != 0) == kernel)
            printf("%8" PRIu64 "  %.62s\n", node->unserved[i].count, node->unserved[i].name);
}

int simctl_show(struct sim *s, int all)
{
    const struct sim_node *node = s->node;
    uint32_t functions = count_unserved(node, false), kernels = count_unserved(node, true);

    simctl_refresh(s);
    printf("node %s   driver %s   %s\n", node->name, node->driver_version, s->path);
    show_cards(node);
    show_processes(s);
    if (all) {
        list_unserved(node, false);
        list_unserved(node, true);
    } else if (functions + kernels > 0) {
        printf("not served: %u function%s, %u kernel%s (listed by --all)\n", functions,
               functions == 1 ? "" : "s", kernels, kernels == 1 ? "" : "s");
    }
    return fflush(stdout) == 0 ? EXIT_OK : EXIT_FAILED;
}

int simctl_unserved(struct sim *s)
{
    list_unserved(s->node, false);
    list_unserved(s->node, true);
    return EXIT_OK;
}
