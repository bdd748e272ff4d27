/* Memory of a warp: fragments, frames, and the lanes' local memory. */
#ifndef CALABASH_SIM_PTX_FRAME_H
#define CALABASH_SIM_PTX_FRAME_H

#include "sim/ptx/machine.h"

struct fragment *fragment_new(struct warp *w);
void fragment_free(struct warp *w, struct fragment *f);
/* NULL: out of memory, or of the stack. */
struct frame *frame_new(struct warp *w, const struct routine *f, struct frame *caller, const struct op *call);
void frame_free(struct warp *w, struct frame *f);
/* Initialize a warp of a block, which may have run before; return false without memory. */
bool warp_begin(struct warp *w, struct block *b, uint32_t index, const struct routine *f);
/* Free its memory. */
void warp_end(struct warp *w);

#endif
