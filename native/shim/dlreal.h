/* The real dynamic-linking functions, called by the trampolines of dl.c. Valid after cb_dl_find(). */
#ifndef CALABASH_SHIM_DLREAL_H
#define CALABASH_SHIM_DLREAL_H

struct cb_dl {
    void *dlsym, *dlvsym, *dlopen, *dlmopen;
};
extern struct cb_dl cb_dl __attribute__((visibility("hidden")));

void cb_dl_find(void);

#endif
