/*
 * Look-up of the C library's own dlsym and dlopen, which our exports of the same names hide.
 *
 * Theory of operation. A look-up by name through the dynamic linker would return our own functions, and the
 * versioned name to use differs: dlsym lives in libdl.so.2 as GLIBC_2.2.5 up to glibc 2.33 and in libc.so.6 as
 * GLIBC_2.34 from then on. So the symbol tables of the loaded objects are read directly: dl_iterate_phdr gives
 * each object's dynamic section, its DT_SONAME tells whether it is a C library, and DT_GNU_HASH (System V
 * DT_HASH as second choice) finds the symbol; among several versions the default one is taken, the one whose
 * `hidden` bit is clear. Source: System V gABI chapter 5 and the GNU hash section layout of binutils.
 */
#define _GNU_SOURCE
#include "shim/elf.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

/* Plain loops: a sanitizer's own strcmp is looked up by this very code. */
static int strings_equal(const char *one, const char *other)
{
    while (*one != 0 && *one == *other) {
        one++;
        other++;
    }
    return *one == *other;
}

static const char *path_file_name(const char *path)
{
    const char *file = path;
    for (; *path != 0; path++)
        if (*path == '/') file = path + 1;
    return file;
}

#define VERSION_HIDDEN 0x8000u

struct object {
    uintptr_t base;
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *sysv_hash;
    const ElfW(Half) * versions;
    const char *soname;
};

/*
 * Pointers of a dynamic section are relocated in place by glibc and left as offsets by others and by the vDSO.
 */
static const void *dynamic_pointer(uintptr_t base, ElfW(Addr) pointer)
{
    return (const void *)(pointer < base ? base + pointer : pointer);
}

/* Read the `dynamic` section of an object loaded at `object->base`. */
static int read_dynamic(const ElfW(Dyn) * dynamic, struct object *object)
{
    ElfW(Xword) soname = 0;
    for (const ElfW(Dyn) *entry = dynamic; entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB:
            object->symbols = dynamic_pointer(object->base, entry->d_un.d_ptr);
            break;
        case DT_STRTAB:
            object->strings = dynamic_pointer(object->base, entry->d_un.d_ptr);
            break;
        case DT_GNU_HASH:
            object->gnu_hash = dynamic_pointer(object->base, entry->d_un.d_ptr);
            break;
        case DT_HASH:
            object->sysv_hash = dynamic_pointer(object->base, entry->d_un.d_ptr);
            break;
        case DT_VERSYM:
            object->versions = dynamic_pointer(object->base, entry->d_un.d_ptr);
            break;
        case DT_SONAME:
            soname = entry->d_un.d_val;
            break;
        }
    }
    if (object->symbols == NULL || object->strings == NULL) return 0;
    object->soname = soname != 0 ? object->strings + soname : NULL;
    return 1;
}

static int read_object(const struct dl_phdr_info *info, struct object *object)
{
    const ElfW(Dyn) *dynamic = NULL;
    object->base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return dynamic != NULL && read_dynamic(dynamic, object);
}

static int is_driver(const char *soname)
{
    return strings_equal(soname, "libcuda.so.1") || strings_equal(soname, "libnvidia-ml.so.1");
}

int cb_list_has_driver(const struct link_map *any)
{
    if (any == NULL) return 0;
    while (any->l_prev != NULL)
        any = any->l_prev;
    for (; any != NULL; any = any->l_next) {
        struct object object = {.base = any->l_addr};
        if (any->l_ld != NULL && read_dynamic(any->l_ld, &object) && object.soname != NULL
                ? is_driver(object.soname)
                : any->l_name != NULL && is_driver(path_file_name(any->l_name)))
            return 1;
    }
    return 0;
}

static int symbol_matches(const struct object *object, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &object->symbols[index];
    unsigned type = ELF64_ST_TYPE(symbol->st_info);
    if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 || type != STT_FUNC) return 0;
    return strings_equal(object->strings + symbol->st_name, name);
}

/* Keep the better of two candidates; return true if no better one can follow. */
static int candidate_keep(const struct object *object, uint32_t index, uint32_t *best)
{
    *best = index;
    return object->versions == NULL || (object->versions[index] & VERSION_HIDDEN) == 0;
}

static uint32_t symbol_find_gnu_hash(const struct object *object, const char *name)
{
    const uint32_t *table = object->gnu_hash;
    uint32_t bucket_count = table[0], first = table[1], bloom_count = table[2];
    const uint32_t *buckets = &table[4 + bloom_count * (sizeof(ElfW(Addr)) / 4)];
    const uint32_t *chain = buckets + bucket_count;
    uint32_t hash = 5381, best = 0;
    for (const unsigned char *c = (const unsigned char *)name; *c != 0; c++)
        hash = hash * 33 + *c;
    if (bucket_count == 0) return 0;
    uint32_t index = buckets[hash % bucket_count];
    if (index < first) return 0;
    for (;; index++) {
        uint32_t value = chain[index - first];
        if ((value | 1u) == (hash | 1u) && symbol_matches(object, index, name) &&
            candidate_keep(object, index, &best))
            break;
        if (value & 1u) break;
    }
    return best;
}

static uint32_t symbol_find_sysv_hash(const struct object *object, const char *name)
{
    uint32_t bucket_count = object->sysv_hash[0], hash = 0, best = 0;
    const uint32_t *buckets = &object->sysv_hash[2], *chain = buckets + bucket_count;
    for (const unsigned char *c = (const unsigned char *)name; *c != 0; c++) {
        hash = (hash << 4) + *c;
        hash = (hash ^ ((hash >> 24) & 0xF0u)) & 0x0FFFFFFFu;
    }
    if (bucket_count == 0) return 0;
    for (uint32_t index = buckets[hash % bucket_count]; index != 0; index = chain[index])
        if (symbol_matches(object, index, name) && candidate_keep(object, index, &best)) break;
    return best;
}

static int is_c_library(const char *soname)
{
    return soname != NULL && (strings_equal(soname, "libc.so.6") || strings_equal(soname, "libdl.so.2") ||
                              strings_equal(soname, "libc.musl-x86_64.so.1") ||
                              strings_equal(soname, "libc.musl-aarch64.so.1"));
}

struct search {
    const char *name;
    void *found;
};

static int visit_for_symbol(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct search *search = argument;
    struct object object = {0};
    (void)size;
    if (!read_object(info, &object) || !is_c_library(object.soname)) return 0;
    uint32_t index = object.gnu_hash != NULL    ? symbol_find_gnu_hash(&object, search->name)
                     : object.sysv_hash != NULL ? symbol_find_sysv_hash(&object, search->name)
                                                : 0;
    if (index == 0) return 0;
    search->found = (void *)(object.base + object.symbols[index].st_value);
    return 1;
}

void *cb_libc_symbol(const char *name)
{
    struct search search = {.name = name, .found = NULL};
    dl_iterate_phdr(visit_for_symbol, &search);
    return search.found;
}

struct place {
    uintptr_t address;
    const char *soname;
    int answer;
};

static int visit_for_address(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct place *place = argument;
    struct object object = {0};
    int inside = 0;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum && !inside; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;
        inside = segment->p_type == PT_LOAD && place->address >= start &&
                 place->address < start + segment->p_memsz;
    }
    if (!inside) return 0;
    if (read_object(info, &object) && object.soname != NULL) {
        place->answer = strings_equal(object.soname, place->soname);
    } else {
        place->answer = strings_equal(path_file_name(info->dlpi_name), place->soname);
    }
    return 1;
}

int cb_object_is(const void *address, const char *soname)
{
    struct place place = {.address = (uintptr_t)address, .soname = soname, .answer = 0};
    dl_iterate_phdr(visit_for_address, &place);
    return place.answer;
}
