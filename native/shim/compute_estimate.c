/* The table of launch time estimates, and how samples change them. */
#include "shim/compute_estimate.h"

#include "shim/compute_limiter.h"
#include "shim/compute_words.h"

#include <string.h>

#define ESTIMATE_PROBES 16u
#define CLEAN_MAX       255u
#define OUTLIER_RUN     4u /* consecutive clean samples far above the mean that replace the mean */
#define UNCLEAN_RUN     64u
#define LOWER_RUN       6u
#define MINIMUM_RUN     32u
#define CLEAN_LOWER_RUN 8u
#define EARLY \
    16u /* samples until an estimate that began while other processes had work is considered reliable */
#define EARLY_RUN     3u
#define SAMPLE_GAP_NS 100000u

#define CB_ESTIMATES 4096u

/* the last entry serves all keys that found no free one */
static struct cb_estimate estimates[CB_ESTIMATES + 1];
static uint64_t last_sample_ns;

/* Open addressing, fixed size; entries are never freed. */
struct cb_estimate *cb_estimate_find(uint64_t key)
{
    for (uint32_t i = 0; i < ESTIMATE_PROBES; i++) {
        struct cb_estimate *estimate = &estimates[((key >> 20) + i) % CB_ESTIMATES];
        if (cb_key_take(&estimate->key, key)) return estimate;
    }
    return &estimates[CB_ESTIMATES];
}

void cb_sample_taken(struct cb_estimate *estimate, uint64_t now_ns)
{
    STORE(&estimate->sampled_ns, now_ns);
    STORE(&last_sample_ns, now_ns);
}

bool cb_sample_due(struct cb_estimate *estimate, bool poor, uint64_t now_ns)
{
    uint64_t mean = LOAD(&estimate->mean_ns);
    if (mean == 0) return LOAD(&estimate->pending) < CB_UNKNOWN_PENDING;
    if (mean >= CB_LONG_NS) return true;
    uint32_t clean = LOAD(&estimate->clean);
    uint64_t interval = clean < 4 ? 200000u : clean < 16 ? 2000000u : 10000000u;
    if (poor) interval *= 4;
    if (now_ns - LOAD(&estimate->sampled_ns) < interval) return false;
    return now_ns - LOAD(&last_sample_ns) >= SAMPLE_GAP_NS;
}

/* Mean after a run of clean samples below it. */
static uint64_t estimate_after_lower_run(struct cb_estimate *estimate, uint64_t mean, uint64_t measured)
{
    uint32_t lower = LOAD(&estimate->lower);
    uint64_t most = LOAD(&estimate->lower_ns);
    if (measured + mean / 10 > mean) {
        STORE(&estimate->lower, 0);
        return mean;
    }
    if (lower == 0 || measured > most) most = measured;
    STORE(&estimate->lower_ns, most);
    STORE(&estimate->lower, lower + 1 < CLEAN_LOWER_RUN ? lower + 1 : 0);
    return lower + 1 < CLEAN_LOWER_RUN ? mean : most;
}

bool cb_estimate_learn_clean(struct cb_estimate *estimate, uint64_t mean, uint64_t measured)
{
    uint32_t clean = LOAD(&estimate->clean);
    if (clean > 0 && measured > 4 * mean && ADD(&estimate->outliers, 1) < OUTLIER_RUN) return false;
    uint32_t outliers = LOAD(&estimate->outliers);
    STORE(&estimate->outliers, 0);
    if (clean == 0 || outliers >= OUTLIER_RUN)
        mean = measured;
    else {
        int64_t weight = clean < 8 ? clean + 1 : 8;
        mean = estimate_after_lower_run(estimate, mean, measured);
        mean = (uint64_t)((int64_t)mean + ((int64_t)measured - (int64_t)mean) / weight);
    }
    STORE(&estimate->mean_ns, mean ? mean : 1);
    STORE(&estimate->clean, clean < CLEAN_MAX ? clean + 1 : CLEAN_MAX);
    STORE(&estimate->unclean, 0);
    STORE(&estimate->run, 0);
    return true;
}

void cb_estimate_believe(struct cb_estimate *estimate, uint64_t mean)
{
    STORE(&estimate->unclean, EARLY);
    STORE(&estimate->run, 0);
    STORE(&estimate->mean_ns, mean);
}

void cb_estimate_learn_unclean(struct cb_estimate *estimate, uint64_t mean, uint64_t measured)
{
    uint32_t unclean = ADD(&estimate->unclean, 1);
    if (mean != 0 && LOAD(&estimate->clean) > 0 && unclean < UNCLEAN_RUN) {
        /*
         * A long estimate from clean samples outweighs one such sample; a run of them clearly below the mean is
         * believed.
         */
        if (measured + mean / 10 > mean) {
            STORE(&estimate->run, 0);
            return;
        }
        if (LOAD(&estimate->run) == 0 || measured > LOAD(&estimate->run_ns))
            STORE(&estimate->run_ns, measured);
        if (ADD(&estimate->run, 1) + 1 < LOWER_RUN) return;
        STORE(&estimate->run, 0);
        mean = LOAD(&estimate->run_ns);
    } else if (mean == 0 || measured <= mean) {
        mean = measured;
        STORE(&estimate->run, 0);
    } else { /* the minimum of the last few, so that it can rise again */
        if (LOAD(&estimate->run) == 0 || measured < LOAD(&estimate->run_ns))
            STORE(&estimate->run_ns, measured);
        if (ADD(&estimate->run, 1) + 1 < (unclean < EARLY ? EARLY_RUN : MINIMUM_RUN)) return;
        STORE(&estimate->run, 0);
        mean = LOAD(&estimate->run_ns);
    }
    STORE(&estimate->mean_ns, mean ? mean : 1);
}

void cb_estimate_forget(uint64_t key)
{
    struct cb_estimate *estimate = cb_estimate_find(key);
    STORE(&estimate->mean_ns, 0);
    STORE(&estimate->clean, 0);
}

void cb_estimates_reset(void)
{
    memset(estimates, 0, sizeof(estimates));
}
