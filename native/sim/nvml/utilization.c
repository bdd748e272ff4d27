/*
 * Utilization of a card by process.
 *
 * The state file keeps the time of each process in ticks of 100 ms, also of those that have ended. A sample is
 * the share of the ticks that ended after the reader's time stamp, at most the 6.3 s that are kept, and is
 * stamped with the end of the last of them: samples of a reader that passes the last stamp join without gap or
 * overlap. A process that used no time has no sample.
 */
#include "sim/node/slot.h"
#include "sim/nvml/activity.h"
#include "sim/nvml/core.h"

#include <sys/stat.h>
#include <unistd.h>

#define JITTER_NS  1000000ull           /* between the two clocks, from the making of a stamp to its return */
#define TICKS_MAX  (SIM_PROC_TICKS - 1) /* the running tick is not complete */
#define SHARES_MAX (SIM_PROCS_MAX + SIM_DEPARTED_MAX)

/* Time covered by a sample: from anywhere in tick `first` to the end of the tick before `last`. */
struct window {
    uint64_t from_ns, first, last;
    unsigned long long stamp_us;
};

struct share {
    unsigned int pid;
    uint64_t busy_ns;
};

/*
 * Set the window from a reader's stamp (0: a second ago) to the end of the latest tick; return false if it is
 * empty.
 */
static bool window_make(unsigned long long last_seen_us, struct window *w)
{
    uint64_t now = sim_now(), offset = nv_realtime_ns() - now, seen = last_seen_us * 1000;
    uint64_t from = last_seen_us == 0 || seen < offset ? now - NVML_SECOND_NS : seen - offset;
    uint64_t nearest = (from + SIM_PROC_TICK_NS / 2) / SIM_PROC_TICK_NS * SIM_PROC_TICK_NS;

    if (from + JITTER_NS > nearest && from < nearest + JITTER_NS) from = nearest; /* one of our own stamps */
    w->last = now / SIM_PROC_TICK_NS;
    w->stamp_us = (w->last * SIM_PROC_TICK_NS + offset) / 1000;
    if (from >= w->last * SIM_PROC_TICK_NS) return false;
    if (from < (w->last - TICKS_MAX) * SIM_PROC_TICK_NS) from = (w->last - TICKS_MAX) * SIM_PROC_TICK_NS;
    w->first = from / SIM_PROC_TICK_NS;
    w->from_ns = from;
    return true;
}

static uint64_t busy_in_window(const struct window *w, const struct sim_ticks *ticks)
{
    uint64_t busy = 0;

    for (uint64_t tick = w->first; tick < w->last; tick++) {
        uint64_t part = SIM_PROC_TICK_NS - (tick == w->first ? w->from_ns % SIM_PROC_TICK_NS : 0);

        if (ticks->tick[tick % SIM_PROC_TICKS] != tick) continue;
        busy += ticks->busy_ns[tick % SIM_PROC_TICKS] * part / SIM_PROC_TICK_NS;
    }
    return busy;
}

static unsigned int share_add(struct share *shares, unsigned int used, unsigned int pid, uint64_t busy_ns)
{
    if (pid == 0 || busy_ns == 0) return used;
    for (unsigned int i = 0; i < used; i++) {
        if (shares[i].pid != pid) continue;
        shares[i].busy_ns += busy_ns;
        return used;
    }
    shares[used] = (struct share){pid, busy_ns};
    return used + 1;
}

/* Collect the processes that used the card in the window, as far as they are visible to the caller. */
static unsigned int shares_collect(const struct nv_target *t, const struct window *w, struct share *shares)
{
    const struct sim_node *n = t->sim->node;
    struct stat st;
    uint64_t here = stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
    unsigned int used = 0;

    sim_lock_node(t->sim);
    for (uint32_t i = 0; i < sim_procs_used(n); i++) {
        uint64_t busy =
            n->proc[i].state == SIM_SLOT_LIVE ? busy_in_window(w, &n->proc[i].device[t->index].ticks) : 0;

        if (busy > 0) used = share_add(shares, used, (unsigned int)sim_process_pid(t->sim, i), busy);
    }
    for (uint32_t i = 0; i < SIM_DEPARTED_MAX; i++) {
        const struct sim_departed *d = &n->departed[i];

        if (d->used && d->device == t->index && d->pid_namespace == here)
            used = share_add(shares, used, (unsigned int)d->pid, busy_in_window(w, &d->ticks));
    }
    sim_unlock_node(t->sim);
    return used;
}

static unsigned int busy_percent(const struct window *w, uint64_t busy_ns)
{
    uint64_t whole = w->last * SIM_PROC_TICK_NS - w->from_ns, value = (busy_ns * 100 + whole / 2) / whole;

    return value < 100 ? (unsigned int)value : 100;
}

/* Fill `shares`; their number goes to *used. NOT_FOUND if there is no sample after the time stamp. */
static nvmlReturn_t shares_read(const struct nv_target *t, unsigned long long last_seen_us, struct window *w,
                                struct share *shares, unsigned int *used)
{
    if (t->device->mig.mode) return NVML_ERROR_NOT_SUPPORTED; /* as on real cards */
    nv_refresh(t);
    *used = window_make(last_seen_us, w) ? shares_collect(t, w, shares) : 0;
    return *used > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                         unsigned int *count, unsigned long long last_seen_us)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(count);
    struct share shares[SHARES_MAX];
    struct window w;
    unsigned int capacity = samples != NULL ? *count : 0;
    nvmlReturn_t result = shares_read(&t, last_seen_us, &w, shares, count);

    for (unsigned int i = 0; result == NVML_SUCCESS && i < *count && i < capacity; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = shares[i].pid, .timeStamp = w.stamp_us, .smUtil = busy_percent(&w, shares[i].busy_ns)};
    return result == NVML_SUCCESS && *count > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : result;
}

NVML_API nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(info);
    if (info->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct share shares[SHARES_MAX];
    struct window w;
    unsigned int capacity = info->procUtilArray != NULL ? info->processSamplesCount : 0;
    nvmlReturn_t result = shares_read(&t, info->lastSeenTimeStamp, &w, shares, &info->processSamplesCount);

    for (unsigned int i = 0; result == NVML_SUCCESS && i < info->processSamplesCount && i < capacity; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .pid = shares[i].pid, .timeStamp = w.stamp_us, .smUtil = busy_percent(&w, shares[i].busy_ns)};
    return result == NVML_SUCCESS && info->processSamplesCount > capacity ? NVML_ERROR_INSUFFICIENT_SIZE
                                                                          : result;
}
