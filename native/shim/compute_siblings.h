/*
 * What the processes of a container know of each other's kernels.
 *
 * Every process measures its kernels itself. But processes of one container often start together and launch the
 * same kernel, none of which anybody has measured: all of these first launches are on the card at once, and each
 * is measured as the time that all of them take. So a first launch is noted in the usage page under the shape of
 * its kernel (handles of functions differ between processes, shapes do not). While it runs, siblings wait with
 * theirs of the same shape; what it took is then their guess until they have measured for themselves. Another
 * kernel may have the same shape: a guess is what a launch is charged meanwhile, and is believed beyond that only if
 * the first measurement agrees with it.
 */
#ifndef CALABASH_SHIM_COMPUTE_SIBLINGS_H
#define CALABASH_SHIM_COMPUTE_SIBLINGS_H

#include <stdbool.h>
#include <stdint.h>

/* What siblings measured of kernels of the shape of this key; 0: nothing is known. */
uint64_t cb_siblings_guess(uint32_t device, uint64_t key);

/* What a launch is charged that this process has never measured. */
uint64_t cb_siblings_cost(uint32_t device, uint64_t key);

/* Whether a sibling is measuring its first of them. If not, we are from now on: asked again within a moment, or told
 * what came of it (mean_ns 0: nothing; certain: it was measured alone). */
bool cb_siblings_measure(uint32_t device, uint64_t key, uint64_t now_ns);

void cb_siblings_tell(uint32_t device, uint64_t key, uint64_t mean_ns, bool certain);

#endif
