/* Look-up in the table of card models, which native/api generates from cards.tsv and mig.tsv. */
#include "sim/node/card.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/*
 * Reduce a spelling to its letters and digits in upper case, without a closing "GB"; return false if it does
 * not fit.
 */
static int spelling_normalize(const char *text, size_t length, char *out, size_t out_size)
{
    size_t used = 0;

    for (size_t i = 0; i < length; i++) {
        if (text[i] == '-' || text[i] == '_' || text[i] == ' ') continue;
        if (!isalnum((unsigned char)text[i]) || used + 1 >= out_size) return 0;
        out[used++] = (char)toupper((unsigned char)text[i]);
    }
    if (used > 2 && strncmp(out + used - 2, "GB", 2) == 0) used -= 2;
    out[used] = '\0';
    return used > 0;
}

static int spelling_matches(const char *wanted, const char *text, size_t length)
{
    char squeezed[64];

    return spelling_normalize(text, length, squeezed, sizeof squeezed) && strcmp(wanted, squeezed) == 0;
}

const struct card *card_find(const char *text)
{
    char wanted[64];

    if (!spelling_normalize(text, strlen(text), wanted, sizeof wanted)) return NULL;
    for (size_t i = 0; i < card_count; i++) {
        const struct card *card = &cards[i];

        if (spelling_matches(wanted, card->key, strlen(card->key))) return card;
        if (spelling_matches(wanted, card->name, strlen(card->name))) return card;
        for (const char *alias = card->aliases; *alias != '\0';) {
            size_t length = strcspn(alias, ",");

            if (spelling_matches(wanted, alias, length)) return card;
            alias += length + (alias[length] == ',');
        }
    }
    return NULL;
}

static char keys[256];

static void build_keys(void)
{
    size_t used = 0;

    for (size_t i = 0; i < card_count; i++) {
        int n = snprintf(keys + used, sizeof keys - used, "%s%s", i > 0 ? ", " : "", cards[i].key);

        if (n < 0 || (size_t)n >= sizeof keys - used) return;
        used += (size_t)n;
    }
}

const char *card_keys(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, build_keys);
    return keys;
}
