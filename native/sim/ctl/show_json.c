/* The state of a node, as JSON. */
#include "sim/ctl/show_json.h"

#include "sim/ctl/open.h"
#include "sim/ctl/show.h"
#include "sim/node/slot.h"

#include <inttypes.h>
#include <stdio.h>

/* A JSON string of at most `size` bytes; what is not printable ASCII is escaped, byte by byte. */
static void put_string(const char *text, size_t size)
{
    putchar('"');
    for (size_t i = 0; i < size && text[i] != '\0'; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c >= 0x7F)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void put_field(const char *name, const char *text, size_t size)
{
    printf("\"%s\":", name);
    put_string(text, size);
    putchar(',');
}

static void put_number(const char *name, uint64_t value)
{
    printf("\"%s\":%" PRIu64 ",", name, value);
}

static void put_faults(const struct sim_device *d)
{
    const struct sim_faults *f = &d->faults;
    uint64_t shown = f->xid_count < SIM_XIDS_MAX ? f->xid_count : SIM_XIDS_MAX;

    printf("\"lost\":%s,", f->lost ? "true" : "false");
    put_number("slow_permille", f->slow_permille ? f->slow_permille : 1000);
    put_number("alloc_fail_countdown", f->alloc_fail_countdown > 0 ? (uint64_t)f->alloc_fail_countdown : 0);
    put_number("alloc_fail_permille", f->alloc_fail_permille);
    put_number("ecc_volatile_single", f->ecc_volatile_sbe);
    put_number("ecc_volatile_double", f->ecc_volatile_dbe);
    put_number("ecc_aggregate_single", f->ecc_aggregate_sbe);
    put_number("ecc_aggregate_double", f->ecc_aggregate_dbe);
    put_number("xid_count", f->xid_count);
    printf("\"xids\":[");
    for (uint64_t i = 0; i < shown; i++) {
        const struct sim_xid *x = &f->xid[(f->xid_count - shown + i) % SIM_XIDS_MAX];

        printf("%s{\"xid\":%u,\"time_ns\":%" PRIu64 ",\"pid\":%u,\"instance\":%d}", i ? "," : "", x->xid,
               x->time_ns, x->pid, x->gi == SIM_NO_INSTANCE ? -1 : (int)x->gi);
    }
    printf("],");
}

static void put_mig(const struct sim_device *d)
{
    const char *comma = "";

    printf("\"mig_enabled\":%s,\"gpu_instances\":[", d->mig.mode ? "true" : "false");
    for (uint32_t i = 0; i < SIM_GI_MAX; i++) {
        const struct sim_gi *g = &d->mig.gi[i];

        if (!g->used) continue;
        printf("%s{\"id\":%u,\"start\":%u,\"size\":%u,\"memory_bytes\":%" PRIu64 ",\"used_bytes\":%" PRIu64
               "}",
               comma, g->id, g->slice_start, g->memory_slices, g->memory_bytes, g->used_bytes);
        comma = ",";
    }
    printf("],\"compute_instances\":[");
    comma = "";
    for (uint32_t i = 0; i < SIM_CI_MAX; i++) {
        const struct sim_ci *c = &d->mig.ci[i];

        if (!c->used) continue;
        printf("%s{\"uuid\":\"%s\",\"gpu_instance\":%u,\"id\":%u,\"start\":%u,\"size\":%u}", comma, c->uuid,
               c->gi_id, c->id, c->slice_start, c->slice_count);
        comma = ",";
    }
    printf("],");
}

static void put_device(const struct sim_node *node, uint32_t index)
{
    const struct sim_device *d = &node->device[index];
    const struct sim_profile *p = &d->profile;
    const char *comma = "";

    printf("%s{", index ? "," : "");
    put_number("index", index);
    put_field("uuid", p->uuid, sizeof p->uuid);
    put_field("model", p->model, sizeof p->model);
    put_field("name", p->name, sizeof p->name);
    put_number("memory_total_bytes", p->memory_total_bytes);
    put_number("memory_reserved_bytes", p->memory_reserved_bytes);
    put_number("used_bytes", d->used_bytes);
    put_number("used_peak_bytes", d->used_peak_bytes);
    put_number("alloc_bytes", d->alloc_bytes);
    put_number("alloc_peak_bytes", d->alloc_peak_bytes);
    put_number("alloc_count", d->alloc_count);
    put_number("free_count", d->free_count);
    put_number("denied_count", d->denied_count);
    put_number("busy_ns", d->engine.busy_ns);
    put_number("copy_ns", d->engine.copy_ns);
    put_number("kernel_count", d->engine.kernel_count);
    put_number("switch_count", d->engine.switch_count);
    put_number("sm_count", p->sm_count);
    put_number("compute_mode", d->compute_mode);
    put_number("timeslice", d->timeslice);
    printf("\"pci_bus_id\":\"%08X:%02X:%02X.0\",\"numa_node\":%d,", p->pci_domain, p->pci_bus, p->pci_device,
           p->numa_node);
    put_faults(d);
    put_mig(d);
    printf("\"nvlink_peers\":[");
    for (uint32_t i = 0; i < node->device_count; i++) {
        if (!(p->nvlink_peer_mask >> i & 1)) continue;
        printf("%s%u", comma, i);
        comma = ",";
    }
    printf("]}");
}

static void put_process(struct sim *s, uint32_t slot, int first)
{
    const struct sim_proc *p = &s->node->proc[slot];
    const char *comma = "";

    printf("%s{", first ? "" : ",");
    put_number("pid", (uint64_t)sim_process_pid(s, slot)); /* 0: not visible from here */
    put_number("owner_pid", p->pid);
    put_number("uid", p->uid);
    put_field("name", p->name, sizeof p->name);
    printf("\"devices\":[");
    for (uint32_t i = 0; i < s->node->device_count; i++) {
        const struct sim_proc_device *d = &p->device[i];

        if (d->context_count == 0 && d->alloc_bytes == 0 && d->busy_ns == 0) continue;
        printf("%s{", comma);
        put_number("index", i);
        put_number("alloc_bytes", d->alloc_bytes);
        put_number("alloc_peak_bytes", d->alloc_peak_bytes);
        put_number("context_bytes", d->context_bytes);
        put_number("context_count", d->context_count);
        put_number("copy_ns", d->copy_ns);
        printf("\"busy_ns\":%" PRIu64 "}", d->busy_ns);
        comma = ",";
    }
    printf("]}");
}

int simctl_show_json(struct sim *s)
{
    const struct sim_node *node = s->node;
    int first = 1;

    simctl_refresh(s);
    putchar('{');
    put_field("path", s->path, sizeof s->path);
    put_field("name", node->name, sizeof node->name);
    put_field("driver_version", node->driver_version, sizeof node->driver_version);
    put_number("cuda_version", node->driver_cuda);
    put_number("created_ns", node->created_ns);
    put_number("swept_count", node->swept_count);
    printf("\"devices\":[");
    for (uint32_t i = 0; i < node->device_count; i++)
        put_device(node, i);
    printf("],\"processes\":[");
    for (uint32_t i = 0; i < sim_procs_used(node); i++) {
        if (node->proc[i].state != SIM_SLOT_LIVE) continue;
        put_process(s, i, first);
        first = 0;
    }
    printf("],\"unserved\":[");
    for (uint32_t i = 0; i < node->unserved_count; i++) {
        printf("%s{", i ? "," : "");
        put_field("name", node->unserved[i].name, sizeof node->unserved[i].name);
        put_field("kind", node->unserved[i].kernel ? "kernel" : "function", 16);
        printf("\"count\":%" PRIu64 "}", node->unserved[i].count);
    }
    printf("]}\n");
    return fflush(stdout) == 0 ? EXIT_OK : EXIT_FAILED;
}
