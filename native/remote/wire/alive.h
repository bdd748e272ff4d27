/*
 * Whether the other side lives, as whoever waits for it sees it: after some silence it is asked, after more it is given up.
 * Time in which we did not look does not count, for we may have been stopped ourselves.
 */
#ifndef CALABASH_REMOTE_ALIVE_H
#define CALABASH_REMOTE_ALIVE_H

#include <stdbool.h>
#include <stdint.h>

#define CB_ALIVE_EVERY_MS \
    1000 /* how often the worker says so where it says so unasked, and looks whether it was asked */
#define CB_SILENCE_S 10

struct cb_alive {
    int limit_ms; /* 0: it is never given up */
    int64_t heard_ms, looked_ms;
    bool asked;
};

enum cb_alive_state { CB_LIVES, CB_IS_TO_BE_ASKED, CB_IS_SILENT };

/* Milliseconds of silence after which a worker is given up: of CALABASH_REMOTE_SILENCE_S, less what two looks may be late. */
int cb_alive_limit_ms(void);
/* How long to wait at most before the next look. */
int cb_alive_slice_ms(const struct cb_alive *a);
enum cb_alive_state cb_alive_look(struct cb_alive *a, int64_t now_ms, bool heard);

#endif
