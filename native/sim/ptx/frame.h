/* What a warp holds: fragments, frames, memory of its lanes. */
#ifndef CALABASH_SIM_PTX_FRAME_H
#define CALABASH_SIM_PTX_FRAME_H

#include "sim/ptx/machine.h"

struct fragment *fragment_new(struct warp *w);
void fragment_free(struct warp *w, struct fragment *f);
/* NULL: out of memory, or of the stack. */
struct frame *frame_new(struct warp *w, const struct routine *f, struct frame *caller, const struct op *call);
void frame_free(struct warp *w, struct frame *f);
/* Set a warp of a block up, which may have run before; false without memory. */
bool warp_begin(struct warp *w, struct block *b, uint32_t index, const struct routine *f);
/* Give back what it holds. */
void warp_end(struct warp *w);

#endif
