/*
 * Our dlsym, dlvsym, dlopen and dlmopen.
 *
 * A program that looks driver functions up by hand must get our hooks; every other look-up must behave as if
 * we were not there. RTLD_NEXT, RTLD_DEFAULT and dlopen's search path depend on who calls: the C library
 * tells by the return address. So the exported functions are trampolines: they ask a filter first and
 * otherwise jump (not call) to the real function with registers and stack as they were, so that it sees our
 * caller as its own. They are in a file of their own for each machine: jump_x86_64.c, jump_aarch64.c.
 *
 * The filter answers only for names in the hook table, and only where the real answer lies in the real
 * driver.
 */
#define _GNU_SOURCE
#include "shim/dlreal.h"
#include "shim/elf.h"
#include "shim/hook.h"
#include "shim/real.h"

#include <dlfcn.h>
#include <string.h>

void *cb_filter_symbol(void *handle, const char *name) __attribute__((used, visibility("hidden")));
void *cb_filter_version(void *handle, const char *name, const char *version)
    __attribute__((used, visibility("hidden")));
int cb_filter_open(const char *name, int flags) __attribute__((used, visibility("hidden")));
void *cb_open_elsewhere(long space, const char *name, int flags) __attribute__((used, visibility("hidden")));

static bool in_driver(const struct cb_hook *hook, const void *address)
{
    if (hook->real != NULL && *hook->real == address) return true;
    return cb_object_is(address, hook->name[0] == 'c' ? "libcuda.so.1" : "libnvidia-ml.so.1");
}

/* Our own names: who asks for the look-up itself, in whatever way, gets ours. */
static void *own_name(const char *name)
{
    if (name[0] != 'd' || name[1] != 'l') return NULL;
    if (strcmp(name, "dlsym") == 0) return (void *)dlsym;
    if (strcmp(name, "dlvsym") == 0) return (void *)dlvsym;
    if (strcmp(name, "dlopen") == 0) return (void *)dlopen;
    if (strcmp(name, "dlmopen") == 0) return (void *)dlmopen;
    return NULL;
}

static void *look_up(void *handle, const char *name, const char *version)
{
    return version == NULL
               ? cb_real_symbol(handle, name)
               : ((void *(*)(void *, const char *, const char *))cb_dl.dlvsym)(handle, name, version);
}

static bool in_c_library(const void *address)
{
    return cb_object_is(address, "libc.so.6") || cb_object_is(address, "libdl.so.2");
}

/* NULL: not for us, jump to the real one. `version` NULL: any. */
static void *filter(void *handle, const char *name, const char *version)
{
    cb_dl_find();
    void *own = name != NULL ? own_name(name) : NULL;
    if (own != NULL) {
        if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) return own;
        void *found = look_up(handle, name, version);
        return found != NULL && in_c_library(found) ? own : NULL;
    }
    if (name == NULL || !((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v')))
        return NULL;
    const struct cb_hook *hook = cb_hook_named(name);
    if (hook == NULL) return NULL;
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
        /* Both would find our own export first, or a driver that this library stands in front of. */
        if (!(name[0] == 'c' ? cb_load_cuda() : cb_load_nvml())) return NULL;
        return cb_hook_served(hook) ? hook->hook : NULL;
    }
    void *real = look_up(handle, name, version);
    if (real == NULL || real == hook->hook) return real;
    return in_driver(hook, real) ? hook->hook : NULL;
}

void *cb_filter_symbol(void *handle, const char *name)
{
    return filter(handle, name, NULL);
}

void *cb_filter_version(void *handle, const char *name, const char *version)
{
    return filter(handle, name, version);
}

/* RTLD_DEEPBIND would let the library and its dependencies find the driver's names before ours. */
int cb_filter_open(const char *name, int flags)
{
    (void)name;
    cb_dl_find();
    return flags & ~RTLD_DEEPBIND;
}

/*
 * A driver in a namespace of its own would have a second state beside the one we watch, and its functions
 * would not be met by our hooks. Whatever brings one along is opened in the first namespace instead, whether
 * it is the driver by its name, a copy under another name, or a library that needs it.
 *
 * What to open is tried out in the namespace that was asked for. NULL: nothing of ours, jump to the real one.
 */
void *cb_open_elsewhere(long space, const char *name, int flags)
{
    cb_dl_find();
    if (space == LM_ID_BASE || name == NULL) return NULL;
    void *(*real)(long, const char *, int) = (void *(*)(long, const char *, int))cb_dl.dlmopen;
    void *handle = real(space, name, flags & ~RTLD_DEEPBIND);
    if (handle == NULL) return NULL;                /* the real one will say why */
    if (!cb_list_has_driver(handle)) return handle; /* a handle of glibc is the object's link map */
    int (*done)(void *) = (int (*)(void *))cb_libc_symbol("dlclose");
    if (done != NULL) (void)done(handle);
    return real(LM_ID_BASE, name, flags & ~RTLD_DEEPBIND);
}
