/* Fault injection by the user: each fault is one row of a table. */
#include "sim/ctl/inject.h"

#include "sim/ctl/open.h"
#include "sim/ctl/reset.h"

#include <stdlib.h>
#include <string.h>

#define XID_LAST              200u
#define CUDA_ERROR_UNKNOWN_   999u /* result of contexts from before a loss, once the card is back */
#define XID_FELL_OFF          79u
#define XID_ROW_REMAP         63u
#define SLOW_PERCENT_MAX      100000u
#define HANG_MAX_S            3600u
#define TEMPERATURE_MAX_C     150u
#define THROTTLE_SW_POWER_CAP 0x4u
#define THROTTLE_HW_THERMAL   0x40u
#define THROTTLE_HW_BRAKE     0x80u
#define NVLINKS_MAX           18u

const char simctl_inject_help[] =
    "xid N, ecc-single, ecc-double, lost, recover, slow P%, alloc-fail N|P%, temperature C, "
    "throttle power|power-brake|thermal|none, row-remap N, row-remap-failed, page-retirement, nvlink-down N";

/* Parse a whole number with an optional '%' behind it, or end with an error. */
static uint64_t number_parse(const char *what, const char *value, uint64_t least, uint64_t most, int *percent)
{
    char *end;

    if (value == NULL) simctl_fail(NULL, "%s needs a number", what);
    unsigned long long n = strtoull(value, &end, 10);

    if (percent != NULL) *percent = *end == '%';
    if (percent != NULL && *end == '%') end++;
    if (*value < '0' || *value > '9' || *end != '\0')
        simctl_fail(NULL, "%s: '%s' is not a number", what, value);
    if (n < least || n > most)
        simctl_fail(NULL, "%s: %llu is out of range, %llu to %llu", what, n, (unsigned long long)least,
                    (unsigned long long)most);
    return n;
}

static void inject_xid(struct sim *s, uint32_t device, const char *value)
{
    sim_inject_xid(s, device, (uint32_t)number_parse("xid", value, 1, XID_LAST, NULL), 0);
}

static void inject_single(struct sim *s, uint32_t device, const char *value)
{
    (void)value;
    sim_inject_ecc(s, device, false);
}

static void inject_double(struct sim *s, uint32_t device, const char *value)
{
    (void)value;
    sim_inject_ecc(s, device, true);
}

static void inject_lost(struct sim *s, uint32_t device, const char *value)
{
    (void)value;
    sim_inject_xid(s, device, XID_FELL_OFF, 0);
}

/* As a reset: faults end, volatile counters start again, contexts from before a loss stay dead. */
static void inject_recover(struct sim *s, uint32_t device, const char *value)
{
    struct sim_faults *f = &s->node->device[device].faults;

    (void)value;
    sim_lock_device(s, device);
    if (f->lost) {
        f->fatal_result = CUDA_ERROR_UNKNOWN_;
        f->fatal_epoch++;
    }
    f->lost = 0;
    f->remap_failed = 0;
    simctl_clear_faults(f);
    sim_unlock_device(s, device);
}

static void inject_slow(struct sim *s, uint32_t device, const char *value)
{
    int percent;
    uint64_t n = number_parse("slow", value, 1, SLOW_PERCENT_MAX, &percent);

    sim_lock_device(s, device);
    s->node->device[device].faults.slow_permille = (uint32_t)(n * 10);
    sim_unlock_device(s, device);
}

static void inject_alloc_fail(struct sim *s, uint32_t device, const char *value)
{
    int percent;
    uint64_t n = number_parse("alloc-fail", value, 0, 1000000000, &percent);
    struct sim_faults *f = &s->node->device[device].faults;

    if (percent && n > 100) simctl_fail(NULL, "alloc-fail: %s is more than all", value);
    sim_lock_device(s, device);
    if (percent)
        f->alloc_fail_permille = (uint32_t)(n * 10);
    else
        f->alloc_fail_countdown = (int64_t)n;
    sim_unlock_device(s, device);
}

static void inject_temperature(struct sim *s, uint32_t device, const char *value)
{
    uint64_t n = number_parse("temperature", value, 1, TEMPERATURE_MAX_C, NULL);

    sim_lock_device(s, device);
    s->node->device[device].faults.temperature_c = (uint32_t)n;
    sim_unlock_device(s, device);
}

static void inject_throttle(struct sim *s, uint32_t device, const char *value)
{
    uint32_t reasons = 0;

    if (value != NULL && strcmp(value, "power") == 0)
        reasons = THROTTLE_SW_POWER_CAP;
    else if (value != NULL && strcmp(value, "thermal") == 0)
        reasons = THROTTLE_HW_THERMAL;
    else if (value != NULL && strcmp(value, "power-brake") == 0)
        reasons = THROTTLE_HW_BRAKE;
    else if (value == NULL || strcmp(value, "none") != 0)
        simctl_fail(NULL, "throttle needs power, power-brake, thermal or none");
    sim_lock_device(s, device);
    s->node->device[device].faults.throttle_reasons = reasons;
    sim_unlock_device(s, device);
}

static void inject_row_remap(struct sim *s, uint32_t device, const char *value)
{
    uint64_t n = number_parse("row-remap", value, 1, 512, NULL);

    sim_lock_device(s, device);
    s->node->device[device].faults.remapped_rows_pending += (uint32_t)n;
    sim_unlock_device(s, device);
    sim_inject_xid(s, device, XID_ROW_REMAP, 0);
}

static void inject_remap_failed(struct sim *s, uint32_t device, const char *value)
{
    (void)value;
    __atomic_store_n(&s->node->device[device].faults.remap_failed, 1, __ATOMIC_RELAXED);
}

static void inject_page_retirement(struct sim *s, uint32_t device, const char *value)
{
    (void)value;
    __atomic_store_n(&s->node->device[device].faults.retired_pages_pending, 1, __ATOMIC_RELAXED);
}

static void inject_nvlink_down(struct sim *s, uint32_t device, const char *value)
{
    uint64_t n = number_parse("nvlink-down", value, 0, NVLINKS_MAX, NULL);

    __atomic_store_n(&s->node->device[device].faults.nvlinks_down, (uint32_t)n, __ATOMIC_RELAXED);
}

static void inject_hang(struct sim *s, uint32_t device, const char *value)
{
    uint64_t seconds = number_parse("hang", value, 1, HANG_MAX_S, NULL);

    __atomic_store_n(&s->node->device[device].faults.hang_until_ns, sim_now() + seconds * 1000000000ull,
                     __ATOMIC_RELAXED);
}

void simctl_inject(struct sim *s, uint32_t device, const char *what, const char *value)
{
    static const struct {
        const char *word;
        void (*apply)(struct sim *, uint32_t, const char *);
        int takes_value;
    } faults[] = {
        {"xid", inject_xid, 1},
        {"ecc-single", inject_single, 0},
        {"ecc-double", inject_double, 0},
        {"lost", inject_lost, 0},
        {"recover", inject_recover, 0},
        {"slow", inject_slow, 1},
        {"throttle", inject_throttle, 1},
        {"alloc-fail", inject_alloc_fail, 1},
        {"row-remap", inject_row_remap, 1},
        {"row-remap-failed", inject_remap_failed, 0},
        {"page-retirement", inject_page_retirement, 0},
        {"nvlink-down", inject_nvlink_down, 1},
        {"temperature", inject_temperature, 1},
        {"hang", inject_hang, 1},
    };

    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        if (strcmp(what, faults[i].word) != 0) continue;
        if (!faults[i].takes_value && value != NULL)
            simctl_fail(NULL, "%s takes no value, '%s' was given", what, value);
        faults[i].apply(s, device, value);
        return;
    }
    simctl_fail(simctl_inject_help, "unknown fault '%s'", what);
}
