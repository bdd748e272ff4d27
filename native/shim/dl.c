/*
 * Replacements of dlsym, dlvsym, dlopen and dlmopen.
 *
 * A program that looks up driver functions itself must get the hooks; every other look-up must behave as
 * without this library. RTLD_NEXT, RTLD_DEFAULT and dlopen's search path depend on the caller, which the C
 * library identifies by the return address. The exported functions are therefore trampolines: they call a
 * filter first and otherwise jump (not call) to the real function with registers and stack unchanged, so that
 * it sees the original caller. The trampolines are in a file for each machine: jump_x86_64.c, jump_aarch64.c.
 *
 * The filter answers only for names in the hook table, and only if the real answer lies in the real driver.
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

static bool address_in_driver(const struct cb_hook *hook, const void *address)
{
    if (hook->real != NULL && *hook->real == address) return true;
    return cb_object_is(address, hook->name[0] == 'c' ? "libcuda.so.1" : "libnvidia-ml.so.1");
}

/* Our replacement for the name of a dynamic-linking function, however it is looked up; NULL for other names. */
static void *replacement_of(const char *name)
{
    if (name[0] != 'd' || name[1] != 'l') return NULL;
    if (strcmp(name, "dlsym") == 0) return (void *)dlsym;
    if (strcmp(name, "dlvsym") == 0) return (void *)dlvsym;
    if (strcmp(name, "dlopen") == 0) return (void *)dlopen;
    if (strcmp(name, "dlmopen") == 0) return (void *)dlmopen;
    return NULL;
}

static void *real_look_up(void *handle, const char *name, const char *version)
{
    return version == NULL
               ? cb_real_symbol(handle, name)
               : ((void *(*)(void *, const char *, const char *))cb_dl.dlvsym)(handle, name, version);
}

static bool address_in_c_library(const void *address)
{
    return cb_object_is(address, "libc.so.6") || cb_object_is(address, "libdl.so.2");
}

/* Return NULL if the real function is to be called. `version` NULL: any. */
static void *filter(void *handle, const char *name, const char *version)
{
    cb_dl_find();
    void *own = name != NULL ? replacement_of(name) : NULL;
    if (own != NULL) {
        if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) return own;
        void *found = real_look_up(handle, name, version);
        return found != NULL && address_in_c_library(found) ? own : NULL;
    }
    if (name == NULL || !((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v')))
        return NULL;
    const struct cb_hook *hook = cb_hook_named(name);
    if (hook == NULL) return NULL;
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
        /* Both would find our own export first, or a driver that this library precedes. */
        if (!(name[0] == 'c' ? cb_load_cuda() : cb_load_nvml())) return NULL;
        return cb_hook_served(hook) ? hook->hook : NULL;
    }
    void *real = real_look_up(handle, name, version);
    if (real == NULL || real == hook->hook) return real;
    return address_in_driver(hook, real) ? hook->hook : NULL;
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
 * Handle dlmopen. A driver in a separate namespace would have a second state beside the intercepted one, and
 * its functions would bypass the hooks. Whatever loads a driver is opened in the first namespace instead: the
 * driver itself, a copy under another name, or a library that needs it.
 *
 * The library is first opened in the requested namespace to find out. Return NULL if it loads no driver: then
 * jump to the real function.
 */
void *cb_open_elsewhere(long space, const char *name, int flags)
{
    cb_dl_find();
    if (space == LM_ID_BASE || name == NULL) return NULL;
    void *(*real)(long, const char *, int) = (void *(*)(long, const char *, int))cb_dl.dlmopen;
    void *handle = real(space, name, flags & ~RTLD_DEEPBIND);
    if (handle == NULL) return NULL;                /* the real function will report the cause */
    if (!cb_list_has_driver(handle)) return handle; /* a handle of glibc is the object's link map */
    int (*done)(void *) = (int (*)(void *))cb_libc_symbol("dlclose");
    if (done != NULL) (void)done(handle);
    return real(LM_ID_BASE, name, flags & ~RTLD_DEEPBIND);
}
