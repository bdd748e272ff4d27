/*
 * CUDA_VISIBLE_DEVICES of the program, which refers to devices as the program sees them. If the worker has a
 * slot, its driver shows the devices of the slot only and nothing needs to be done; if the worker itself was
 * given a list, the program's list selects from it.
 */
#include "remote/worker/environment.h"

#include "remote/wire/environment.h"

#include <ctype.h>
#include <strings.h>

#define ENTRIES_MAX 256u

static size_t list_split(char *text, char **out)
{
    size_t count = 0;
    char *position = NULL;
    for (char *t = strtok_r(text, ", ", &position); t && count < ENTRIES_MAX;
         t = strtok_r(NULL, ", ", &position))
        out[count++] = t;
    return count;
}

/* The entry of the worker's list that the word refers to; NULL: none, or more than one. */
static const char *entry_find(const char *wanted, char **given, size_t count)
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

static void visible_devices_set(const char *own, const char *text)
{
    char *given[ENTRIES_MAX], *wanted[ENTRIES_MAX], list[CB_STRING_MAX] = "";
    char *a = strdup(own), *b = strdup(text);
    size_t have = a ? list_split(a, given) : 0, want = b ? list_split(b, wanted) : 0;
    for (size_t i = 0; i < want; i++) {
        const char *e = entry_find(wanted[i], given, have);
        if (!e || strlen(list) + strlen(e) + 2 > sizeof list)
            break; /* the first invalid entry ends the list */
        if (*list) strcat(list, ",");
        strcat(list, e);
    }
    setenv(CB_VISIBLE_DEVICES, list, 1);
    free(a);
    free(b);
}

static void variable_take(struct cb_request *q, const char *name)
{
    bool set = cb_take_word(q) != 0;
    const char *text = cb_take_string(q);
    if (q->bad || !set) return;
    const char *own = getenv(name);
    if (strcmp(name, CB_VISIBLE_DEVICES) == 0 && own && !getenv("CALABASH_SLOT"))
        visible_devices_set(own, text);
    else
        setenv(name, text, 1);
}

void cb_take_environment(struct cb_request *q)
{
#define TAKE(name) variable_take(q, name);
    CB_ENVIRONMENT(TAKE)
#undef TAKE
}
