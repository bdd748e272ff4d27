/*
 * CUDA_VISIBLE_DEVICES means devices as the program sees them. Where the worker has a slot, its driver's calls are those of
 * the slot and it is so already; where the worker itself was given a list, the program's is a choice from that list.
 */
#include "remote/worker/environment.h"

#include "remote/wire/environment.h"

#include <ctype.h>
#include <strings.h>

#define ENTRIES_MAX 256u

static size_t split(char *text, char **out)
{
    size_t count = 0;
    char *position = NULL;
    for (char *t = strtok_r(text, ", ", &position); t && count < ENTRIES_MAX;
         t = strtok_r(NULL, ", ", &position))
        out[count++] = t;
    return count;
}

/* The entry of the worker's list that the program means; NULL: none, or more than one. */
static const char *entry_of(const char *wanted, char **given, size_t count)
{
    const char *found = NULL;
    if (isdigit((unsigned char)*wanted)) {
        unsigned long i = strtoul(wanted, NULL, 10);
        return i < count ? given[i] : NULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (strncasecmp(given[i], wanted, strlen(wanted))) continue;
        if (found) return NULL;
        found = given[i];
    }
    return found;
}

static void choose(const char *own, const char *text)
{
    char *given[ENTRIES_MAX], *wanted[ENTRIES_MAX], list[CB_STRING_MAX] = "";
    char *a = strdup(own), *b = strdup(text);
    size_t have = a ? split(a, given) : 0, want = b ? split(b, wanted) : 0;
    for (size_t i = 0; i < want; i++) {
        const char *e = entry_of(wanted[i], given, have);
        if (!e || strlen(list) + strlen(e) + 2 > sizeof list) break; /* the first that is nothing ends it */
        if (*list) strcat(list, ",");
        strcat(list, e);
    }
    setenv(CB_VISIBLE_DEVICES, list, 1);
    free(a);
    free(b);
}

static void take(struct cb_request *q, const char *name)
{
    bool set = cb_take_word(q) != 0;
    const char *text = cb_take_string(q);
    if (q->bad || !set) return;
    const char *own = getenv(name);
    if (strcmp(name, CB_VISIBLE_DEVICES) == 0 && own && !getenv("CALABASH_SLOT"))
        choose(own, text);
    else
        setenv(name, text, 1);
}

void cb_take_environment(struct cb_request *q)
{
#define TAKE(name) take(q, name);
    CB_ENVIRONMENT(TAKE)
#undef TAKE
}
