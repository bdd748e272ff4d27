/*
 * Liveness of the other side, as seen by a thread that waits for it: after some silence it is asked, after more
 * it is given up. Time in which this process did not poll does not count, because the process may have been
 * stopped itself.
 */
#ifndef CALABASH_REMOTE_ALIVE_H
#define CALABASH_REMOTE_ALIVE_H

#include <stdbool.h>
#include <stdint.h>

#define CB_ALIVE_EVERY_MS 1000 /* interval at which the worker reports unasked, and checks for questions */
#define CB_SILENCE_S      10

struct cb_alive {
    int limit_ms; /* 0: no limit */
    int64_t heard_ms, looked_ms;
    bool asked;
};

enum cb_alive_state { CB_LIVES, CB_IS_TO_BE_ASKED, CB_IS_SILENT };

/*
 * Milliseconds of silence after which a worker is given up: CALABASH_REMOTE_SILENCE_S, less the time by which
 * two polls may be late.
 */
int cb_alive_limit_ms(void);
/* Longest time to wait before the next poll. */
int cb_alive_slice_ms(const struct cb_alive *a);
enum cb_alive_state cb_alive_look(struct cb_alive *a, int64_t now_ms, bool heard);

#endif
