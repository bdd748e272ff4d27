/* Look-up in the table of hooks. */
#include "shim/hook.h"

#include "shim/real.h"

#include <string.h>

extern const struct cb_hook __start_cb_hooks[] __attribute__((visibility("hidden")));
extern const struct cb_hook __stop_cb_hooks[] __attribute__((visibility("hidden")));

bool cb_hook_served(const struct cb_hook *hook)
{
    return hook->real == NULL || !cb_real_is_absent(*hook->real);
}

const struct cb_hook *cb_hook_named(const char *name)
{
    for (const struct cb_hook *hook = __start_cb_hooks; hook < __stop_cb_hooks; hook++)
        if (strcmp(hook->name, name) == 0) return hook;
    return NULL;
}

/* Compare with the plain name that cuGetProcAddress is called with: no version, no per-thread suffix. */
static bool same_base(const char *exported, const char *base)
{
    size_t length = strlen(base);
    if (strncmp(exported, base, length) != 0) return false;
    const char *rest = exported + length;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '1' && rest[2] <= '9' &&
        (rest[3] == 0 || rest[3] == '_'))
        rest += 3;
    return *rest == 0 || strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0;
}

/*
 * The hook of a real function. Two exports may share one body (an alias): then the one with the requested name
 * is returned, and among versions of that name any is right because one body has one ABI.
 */
const struct cb_hook *cb_hook_of_real(const void *address, const char *name)
{
    const struct cb_hook *found = NULL;
    for (const struct cb_hook *hook = __start_cb_hooks; hook < __stop_cb_hooks; hook++) {
        if (hook->real == NULL || *hook->real != address) continue;
        if (name == NULL || same_base(hook->name, name)) return hook;
        if (found == NULL) found = hook;
    }
    return found;
}
