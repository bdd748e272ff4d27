/* The table of hooks: which function of the shim replaces which function of the driver. */
#ifndef CALABASH_SHIM_HOOK_H
#define CALABASH_SHIM_HOOK_H

#include "shim/base.h"

struct cb_hook {
    const char *name;
    void *hook;
    void **real; /* where the real address is stored; NULL for a denied function, which does not need it */
};

/* Section of the table; several files may add to it. */
#define CB_HOOKS __attribute__((used, section("cb_hooks")))

bool cb_hook_served(const struct cb_hook *hook); /* after loading: true if this driver has the function */
const struct cb_hook *cb_hook_named(const char *name);
const struct cb_hook *cb_hook_of_real(const void *address, const char *name);

#endif
