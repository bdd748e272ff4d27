/*
 * Mirrored memory: memory that the program has at the same addresses. It is either our own pages, registered
 * with the driver, or managed memory.
 */
#include "remote/wire/mirror.h"

#include "remote/wire/arena.h"
#include "remote/worker/generated.h"
#include "remote/worker/session.h"

#include <stdio.h>
#include <sys/mman.h>

static struct entry {
    struct cb_mirror mirror;
    bool own;              /* our own pages */
} entries[CB_MIRRORS_MAX]; /* by address */
static size_t mirror_count;

static struct cb_mirror *mirror_find(uint64_t address)
{
    size_t low = 0, high = mirror_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        struct cb_mirror *t = &entries[middle].mirror;
        if (address < t->address)
            high = middle;
        else if (address - t->address < t->bytes)
            return t;
        else
            low = middle + 1;
    }
    return NULL;
}

static CUresult mirror_entry_add(uint64_t address, uint64_t bytes, bool own, bool sparse)
{
    struct cb_mirror t;
    if (mirror_count == CB_MIRRORS_MAX || !cb_mirror_make(&t, address, bytes, sparse))
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t at = mirror_count++;
    for (; at && entries[at - 1].mirror.address > address; at--)
        entries[at] = entries[at - 1];
    entries[at] = (struct entry){t, own};
    return CUDA_SUCCESS;
}

/* Return true if the pages there are anonymous: then pages that the kernel does not have were never written. */
static bool mapping_is_anonymous(uint64_t address)
{
    char text[512];
    bool anonymous = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(text, sizeof text, maps)) {
        unsigned long long from, to, inode = 1;
        if (sscanf(text, "%llx-%llx %*s %*s %*s %llu", &from, &to, &inode) < 3) continue;
        if (address < from || address >= to) continue;
        anonymous = inode == 0;
        break;
    }
    if (maps) fclose(maps);
    return anonymous;
}

CUresult cb_on_MANAGED(struct cb_request *q)
{
    size_t bytes = cb_take_word(q);
    unsigned int flags = (unsigned int)cb_take_word(q);
    CUdeviceptr p = 0;
    if (!cb_taken(q)) return CB_MALFORMED;
    CUresult result = CB_CALL(cuMemAllocManaged)(&p, bytes, flags);
    if (result != CUDA_SUCCESS) return result;
    result = mirror_entry_add(p, bytes, false, mapping_is_anonymous(p));
    if (result != CUDA_SUCCESS) CB_CALL(cuMemFree_v2)(p);
    cb_give_word(q, p);
    return result;
}

CUresult cb_on_TWIN_MAP(struct cb_request *q)
{
    uint64_t address = cb_take_word(q), bytes = cb_take_word(q);
    if (!cb_taken(q) || !bytes || address % 4096 || !cb_in_arena(address, bytes)) return CB_MALFORMED;
    void *p = mmap((void *)address, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    CUdeviceptr device = 0;
    CUresult result = p == (void *)address ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS)
        result = CB_CALL(cuMemHostRegister_v2)(p, bytes,
                                               CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result == CUDA_SUCCESS) {
        result = CB_CALL(cuMemHostGetDevicePointer_v2)(&device, p, 0);
        if (result == CUDA_SUCCESS && device != address) result = CUDA_ERROR_NOT_SUPPORTED;
        if (result == CUDA_SUCCESS) result = mirror_entry_add(address, bytes, true, true);
        if (result != CUDA_SUCCESS) CB_CALL(cuMemHostUnregister)(p);
    }
    if (result != CUDA_SUCCESS) munmap(p, bytes);
    return result;
}

CUresult cb_on_TWIN_DROP(struct cb_request *q)
{
    uint64_t address = cb_take_word(q);
    if (!cb_taken(q)) return CB_MALFORMED;
    struct cb_mirror *t = mirror_find(address);
    if (!t || t->address != address) return CB_MALFORMED;
    struct entry *e = (struct entry *)(void *)t, gone = *e;
    memmove(e, e + 1, (size_t)(&entries[mirror_count] - (e + 1)) * sizeof *e);
    mirror_count--;
    if (gone.own) {
        CB_CALL(cuMemHostUnregister)((void *)address);
        munmap((void *)address, gone.mirror.bytes);
    }
    cb_mirror_end(&gone.mirror);
    return CUDA_SUCCESS;
}

CUresult cb_on_TWIN_WRITE(struct cb_request *q)
{
    static uint8_t changes[CB_CHANGES_MAX] __attribute__((aligned(8)));
    size_t bytes = cb_take_word(q);
    if (!cb_taken(q) || bytes > sizeof changes || CB_WORDS(bytes) != q->bulk) return CB_MALFORMED;
    if (!cb_bulk_receive(q, changes, CB_WORDS(bytes))) return CB_MALFORMED;
    return cb_mirror_apply(changes, bytes, mirror_find) ? CUDA_SUCCESS : CB_MALFORMED;
}

CUresult cb_on_TWIN_READ(struct cb_request *q)
{
    static uint8_t changes[CB_CHANGES_MAX] __attribute__((aligned(8)));
    uint64_t from = cb_take_word(q);
    size_t filled = 0;
    if (!cb_taken(q)) return CB_MALFORMED;
    for (size_t i = 0; i < mirror_count && sizeof changes - filled >= CB_MIRROR_RECORD; i++) {
        struct cb_mirror *t = &entries[i].mirror;
        uint64_t at = from > t->address ? from - t->address : 0;
        if (at >= t->bytes) continue;
        filled += cb_mirror_changes(t, &at, changes + filled, sizeof changes - filled);
        from = t->address + at;
    }
    bool all = !mirror_count ||
               from >= entries[mirror_count - 1].mirror.address + entries[mirror_count - 1].mirror.bytes;
    cb_give_word(q, all ? 0 : from);
    cb_give_word(q, filled);
    cb_give_bytes(q, changes, filled);
    return CUDA_SUCCESS;
}
