/*
 * Kernel measurements shared by the processes of a container.
 *
 * Every process measures its kernels itself. But processes of one container often start together and launch the
 * same kernel, which none of them has measured: all of these first launches are on the card at once, and each
 * is measured as the time that all of them take. Therefore a first launch is noted in the usage page under the
 * shape of its kernel (handles of functions differ between processes, shapes do not). While it runs, the other
 * processes wait with theirs of the same shape; its measured time is then their guess until they have measured
 * for themselves. Another kernel may have the same shape: the guess is only the provisional charge of a launch,
 * and is believed beyond that only if the first measurement agrees with it.
 */
#ifndef CALABASH_SHIM_COMPUTE_SIBLINGS_H
#define CALABASH_SHIM_COMPUTE_SIBLINGS_H

#include <stdbool.h>
#include <stdint.h>

/* Time that other processes measured of kernels of the shape of this key; 0: unknown. */
uint64_t cb_siblings_guess(uint32_t device, uint64_t key);

/* Charge for a launch that this process has never measured. */
uint64_t cb_siblings_cost(uint32_t device, uint64_t key);

/*
 * Return true if another process is measuring its first launch of this shape. If not, this process is from now
 * on, and must report the result (mean_ns 0: none; certain: it was measured alone).
 */
bool cb_siblings_measure(uint32_t device, uint64_t key, uint64_t now_ns);

void cb_siblings_tell(uint32_t device, uint64_t key, uint64_t mean_ns, bool certain);

#endif
