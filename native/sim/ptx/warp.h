/* How a warp runs (machine.h has the theory). */
#ifndef CALABASH_SIM_PTX_WARP_H
#define CALABASH_SIM_PTX_WARP_H

#include "sim/ptx/machine.h"

/* The registers of `w` are those of `f` from now on. */
static inline void warp_enter(struct warp *w, struct fragment *f)
{
    w->running = f;
    w->base[0] = f->frame->registers;
}

/* Lanes `taken` of the running fragment go to `target`, the others to `other`, and meet at `join`. Answers NULL. */
const struct op *warp_part(struct warp *w, uint32_t taken, const struct op *target, const struct op *other,
                           const struct op *join);
/* The running fragment calls `f`; its frame has been made. */
const struct op *warp_call(struct warp *w, uint32_t mask, const struct op *back, struct frame *called);
/* Lanes return from their function, or end. */
const struct op *warp_return(struct warp *w, uint32_t mask);
const struct op *warp_exit(struct warp *w, uint32_t mask, const struct op *rest);
/* The running fragment waits in `state` and goes on at `at`. */
const struct op *warp_wait(struct warp *w, enum fragment_state state, const struct op *at);
/* `f` may be waiting for lanes that wait for it where they would meet, to end for instance: those go on without it. */
void warp_release_waiting(struct warp *w, const struct fragment *f);
/* For an operation that needs `members` together: the lanes to carry it out for, or 0: the fragment waits. */
uint32_t warp_gather(struct warp *w, const struct op *o, uint32_t mask, uint32_t members);

/* Run until all fragments wait or end, or the turn is over. */
void warp_run(struct warp *w);

/* The program has made an error: the launch ends with this result. Answers NULL. */
const struct op *warp_fault(struct warp *w, const struct op *o, int result, const char *what,
                            uint64_t address);

#endif
