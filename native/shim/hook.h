/* The table of hooks: which of our functions stands in front of which of the driver's. */
#ifndef CALABASH_SHIM_HOOK_H
#define CALABASH_SHIM_HOOK_H

#include "shim/base.h"

struct cb_hook {
    const char *name;
    void *hook;
    void **real; /* where the real address is; NULL for a denied function, which has no use for it */
};

/* The table itself, in parts anywhere. */
#define CB_HOOKS __attribute__((used, section("cb_hooks")))

bool cb_hook_served(const struct cb_hook *hook); /* after loading: this driver has the function */
const struct cb_hook *cb_hook_named(const char *name);
const struct cb_hook *cb_hook_of_real(const void *address, const char *name);

#endif
