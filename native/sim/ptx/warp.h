/* Execution of a warp (machine.h has the theory). */
#ifndef CALABASH_SIM_PTX_WARP_H
#define CALABASH_SIM_PTX_WARP_H

#include "sim/ptx/machine.h"

/* Make the registers of `f` those of `w`. */
static inline void warp_enter(struct warp *w, struct fragment *f)
{
    w->running = f;
    w->base[0] = f->frame->registers;
}

/*
 * Diverge: lanes `taken` of the running fragment go to `target`, the others to `other`, and reconverge at
 * `join`. Return NULL.
 */
const struct op *warp_part(struct warp *w, uint32_t taken, const struct op *target, const struct op *other,
                           const struct op *join);
/* Call `f` from the running fragment; its frame exists. */
const struct op *warp_call(struct warp *w, uint32_t mask, const struct op *back, struct frame *called);
/* Return lanes from their function, or end them. */
const struct op *warp_return(struct warp *w, uint32_t mask);
const struct op *warp_exit(struct warp *w, uint32_t mask, const struct op *rest);
/* Let the running fragment wait in `state` and continue at `at`. */
const struct op *warp_wait(struct warp *w, enum fragment_state state, const struct op *at);
/* Let lanes continue without `f` if they wait for it at a reconvergence point: `f` may be waiting for them. */
void warp_release_waiting(struct warp *w, const struct fragment *f);
/*
 * For an operation that needs `members` together: return the lanes to execute it for, or 0 if the fragment
 * waits.
 */
uint32_t warp_gather(struct warp *w, const struct op *o, uint32_t mask, uint32_t members);

/* Run until all fragments wait or end, or the turn is over. */
void warp_run(struct warp *w);

/* End the launch with this result, after an error of the program. Return NULL. */
const struct op *warp_fault(struct warp *w, const struct op *o, int result, const char *what,
                            uint64_t address);

#endif
