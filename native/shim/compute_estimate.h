/*
 * What a launch is expected to take, by its function and shape.
 *
 * A sample can only be too long, never too short: neighbours on a time-sliced card, siblings of the same
 * container, other streams of the same process, or a host that was slow between the two calls all stretch it.
 * So samples come in two qualities. *Clean*: nobody else launched or had work in flight from begin to end,
 * the card was ours (uncontended, or inside our own turn), and the kernel was queued before the card reached
 * the first event. Clean samples feed a moving mean, which is right for kernels whose time varies. All others
 * count only where there are none of these: then the estimate follows their minimum; and where a run of them
 * lies clearly below the mean. That holds for clean ones, too: a neighbour may not have been known yet.
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
    uint64_t
        run_ns; /* of the last `run` unclean samples: the most of those below, the least of those above */
    uint32_t run;
    uint32_t lower;    /* clean samples in a row that lie clearly below the mean, */
    uint64_t lower_ns; /* and the most of them */
};

struct cb_estimate *cb_estimate_find(uint64_t key);

/*
 * Whether this launch should be a sample, by the age and number of samples of its key. `poor`: it could not
 * be a clean one, because the card is idle and would wait for us between our calls, or because it is not ours
 * for certain.
 */
bool cb_sample_due(struct cb_estimate *estimate, bool poor, uint64_t now_ns);
void cb_sample_taken(struct cb_estimate *estimate, uint64_t now_ns);

/* Learn from a sample; false: it is so far off that it is not believed, unless more of its kind follow. */
bool cb_estimate_learn_clean(struct cb_estimate *estimate, uint64_t mean, uint64_t measured);
/* Of a kernel never measured: what siblings measured. */
void cb_estimate_believe(struct cb_estimate *estimate, uint64_t mean);
void cb_estimate_learn_unclean(struct cb_estimate *estimate, uint64_t mean, uint64_t measured);

void cb_estimate_forget(uint64_t key);
void cb_estimates_reset(void);

#endif
