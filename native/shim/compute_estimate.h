/*
 * Estimated duration of a launch, by its function and shape.
 *
 * A sample can only be too long, never too short: other containers on a time-sliced card, other processes of
 * the same container, other streams of the same process, or a host that was slow between the two calls all
 * lengthen it. Samples therefore come in two qualities. *Clean*: no other process launched or had work in
 * flight from begin to end, the card was used by this container only (uncontended, or inside its time window),
 * and the kernel was queued before the card reached the first event. Clean samples feed a moving mean, which is
 * right for kernels whose time varies. All others count only if there are no clean ones: then the estimate
 * follows their minimum; and if a run of them lies clearly below the mean. The same holds for clean samples:
 * another container may not have been known yet.
 */
#ifndef CALABASH_SHIM_COMPUTE_ESTIMATE_H
#define CALABASH_SHIM_COMPUTE_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

struct cb_estimate {
    uint64_t key;     /* 0: free */
    uint64_t mean_ns; /* 0: never measured */
    uint64_t sampled_ns;
    uint32_t clean;   /* clean samples seen, up to 255 */
    uint32_t unclean; /* samples of the other kind since the last clean one */
    uint32_t pending; /* samples under way */
    uint32_t outliers;
    /* of the last `run` unclean samples: the largest of those below the mean, the smallest of those above */
    uint64_t run_ns;
    uint32_t run;
    uint32_t lower;    /* consecutive clean samples that lie clearly below the mean, */
    uint64_t lower_ns; /* and the largest of them */
};

struct cb_estimate *cb_estimate_find(uint64_t key);

/*
 * Return true if this launch should be a sample, by the age and number of samples of its key. `poor`: it could
 * not be a clean one, because the card is idle and would wait between our calls, or because the card may be
 * used by others.
 */
bool cb_sample_due(struct cb_estimate *estimate, bool poor, uint64_t now_ns);
void cb_sample_taken(struct cb_estimate *estimate, uint64_t now_ns);

/*
 * Learn from a sample. Return false if it is so far off that it is not believed unless more such samples
 * follow.
 */
bool cb_estimate_learn_clean(struct cb_estimate *estimate, uint64_t mean, uint64_t measured);
/* Set the estimate of a kernel never measured to what other processes of the container measured. */
void cb_estimate_believe(struct cb_estimate *estimate, uint64_t mean);
void cb_estimate_learn_unclean(struct cb_estimate *estimate, uint64_t mean, uint64_t measured);

void cb_estimate_forget(uint64_t key);
void cb_estimates_reset(void);

#endif
