/* Reads "name version flags" lines, calls cuGetProcAddress, and prints "result status symbol file" for each. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    char name[128];
    int version;
    unsigned long long flags;
    CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return 1;
    *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
    while (get != NULL && scanf("%127s %d %llu", name, &version, &flags) == 3) {
        void *function = NULL;
        Dl_info info = {.dli_sname = "-", .dli_fname = "-"};
        CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
        CUresult result = get(name, &function, version, flags, &status);
        if (function != NULL) dladdr(function, &info);
        const char *slash = strrchr(info.dli_fname, '/');
        printf("%d %d %s %s\n", (int)result, (int)status, info.dli_sname != NULL ? info.dli_sname : "?",
               slash != NULL ? slash + 1 : info.dli_fname);
    }
    return 0;
}
