/*
 * Looks up ordinary names in every way and prints where they are defined: the results must not depend on a
 * preloaded shim.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void report(const char *what, void *address)
{
    Dl_info info;
    if (address == NULL || !dladdr(address, &info)) {
        printf("%s: none\n", what);
        return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    printf("%s: %s\n", what, slash != NULL ? slash + 1 : info.dli_fname);
}

/* Found first by RTLD_DEFAULT and skipped by RTLD_NEXT: that depends on the caller, which is this program. */
__attribute__((visibility("default"))) int puts(const char *text)
{
    return fputs(text, stdout);
}

int main(void)
{
    report("default puts", dlsym(RTLD_DEFAULT, "puts"));
    report("next puts", dlsym(RTLD_NEXT, "puts"));
    report("next malloc", dlsym(RTLD_NEXT, "malloc"));
    report("versioned memcpy", dlvsym(RTLD_NEXT, "memcpy", "GLIBC_2.2.5"));
    report("absent", dlsym(RTLD_DEFAULT, "cuThereIsNoSuchFunction"));
    report("absent version", dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_9.9"));
    printf("error: %s\n", dlerror() != NULL ? "yes" : "no");
    void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_DEEPBIND);
    report("sin", library != NULL ? dlsym(library, "sin") : NULL);
    void *other = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
    printf("namespace: %s\n", other != NULL && other != library ? "own" : "shared");
    printf("nothing: %s\n",
           dlopen("/there/is/no/such.so", RTLD_NOW) == NULL && dlerror() != NULL ? "yes" : "no");
    return 0;
}
