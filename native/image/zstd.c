/*
 * Zstandard, by which CUDA 13's compiler packs PTX. The library is loaded when an image needs it, so that the
 * simulated driver has no dependency that a minimal machine lacks; without it such an image has no entry for
 * the device.
 */
#include "image/zstd.h"

#include <dlfcn.h>

static size_t (*decompress)(void *out, size_t capacity, const void *in, size_t bytes);
static unsigned (*is_error)(size_t code);

/* Concurrent calls find the same. */
static void library_find(void)
{
    void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    is_error = (unsigned (*)(size_t))dlsym(library, "ZSTD_isError");
    if (is_error)
        decompress = (size_t (*)(void *, size_t, const void *, size_t))dlsym(library, "ZSTD_decompress");
}

bool zstd_available(void)
{
    static int looked;
    if (!__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) {
        library_find();
        __atomic_store_n(&looked, 1, __ATOMIC_RELEASE);
    }
    return decompress != NULL;
}

size_t unpack_zstd(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t capacity)
{
    if (!zstd_available()) return 0;
    size_t bytes = decompress(out, capacity, in, in_bytes);
    return is_error(bytes) ? 0 : bytes;
}
