/* The C library's own dynamic-linking functions. */
#define _GNU_SOURCE
#include "shim/dlreal.h"

#include "shim/base.h"
#include "shim/elf.h"

#include <dlfcn.h>

struct cb_dl cb_dl;

void cb_dl_find(void)
{
    if (__atomic_load_n(&cb_dl.dlsym, __ATOMIC_ACQUIRE) != NULL) return;
    void *sym = cb_libc_symbol("dlsym");
    if (sym == NULL) {
        /* glibc before 2.34 in a program without libdl: the C library can load it. */
        void *(*open_mode)(const char *, int) =
            (void *(*)(const char *, int))cb_libc_symbol("__libc_dlopen_mode");
        if (open_mode != NULL && open_mode("libdl.so.2", RTLD_NOW | RTLD_GLOBAL) != NULL)
            sym = cb_libc_symbol("dlsym");
    }
    if (sym == NULL) {
        cb_say("cannot find the C library's dlsym; refusing to run");
        __builtin_trap();
    }
    cb_dl.dlvsym = cb_libc_symbol("dlvsym");
    cb_dl.dlopen = cb_libc_symbol("dlopen");
    cb_dl.dlmopen = cb_libc_symbol("dlmopen");
    __atomic_store_n(&cb_dl.dlsym, sym, __ATOMIC_RELEASE);
}
