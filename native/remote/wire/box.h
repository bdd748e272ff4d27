/*
 * Copies of rows: only the rows' bytes travel between host memory and the other end, without the gaps between
 * them.
 */
#ifndef CALABASH_REMOTE_BOX_H
#define CALABASH_REMOTE_BOX_H

#include <stdint.h>

/* An end at the worker; both ends write it as words. */
struct cb_box_end {
    uint64_t is_array;
    uint64_t at; /* an address, or the number of an array */
    uint64_t pitch, height, x, y, z;
};

struct cb_box {
    uint64_t width, height, depth; /* bytes, rows, slices */
};

#define CB_BOX_WORDS 12u /* before the bytes: an end, the box, a stream, whether it is asynchronous */

#endif
