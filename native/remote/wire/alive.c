#include "remote/wire/alive.h"

#include <stdlib.h>

#define SILENCE_MIN_S 4
#define SILENCE_MAX_S 3600
#define ASK_AFTER_MS  2000

int cb_alive_limit_ms(void)
{
    const char *text = getenv("CALABASH_REMOTE_SILENCE_S");
    char *end = NULL;
    long seconds = text && *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : CB_SILENCE_S;
    if ((end && *end) || seconds < SILENCE_MIN_S || seconds > SILENCE_MAX_S) seconds = CB_SILENCE_S;
    return (int)seconds * 1000 - 2 * CB_ALIVE_EVERY_MS;
}

int cb_alive_slice_ms(const struct cb_alive *a)
{
    return a->limit_ms < 4 * CB_ALIVE_EVERY_MS ? a->limit_ms / 4 : CB_ALIVE_EVERY_MS;
}

enum cb_alive_state cb_alive_look(struct cb_alive *a, int64_t now_ms, bool heard)
{
    int64_t ask_after_ms = a->limit_ms / 4 < ASK_AFTER_MS ? a->limit_ms / 4 : ASK_AFTER_MS;
    bool looked = now_ms - a->looked_ms <= 2 * CB_ALIVE_EVERY_MS;
    a->looked_ms = now_ms;
    if (heard || !looked) {
        a->heard_ms = now_ms;
        a->asked = false;
    }
    if (!a->limit_ms || now_ms - a->heard_ms < ask_after_ms) return CB_LIVES;
    if (now_ms - a->heard_ms >= a->limit_ms) return CB_IS_SILENT;
    bool ask = !a->asked;
    a->asked = true;
    return ask ? CB_IS_TO_BE_ASKED : CB_LIVES;
}
