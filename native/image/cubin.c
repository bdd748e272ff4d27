/*
 * Reader of cubins: a 64-bit ELF file with a section `.text.NAME` for each kernel, `.nv.info.NAME` with its
 * parameters, `.nv.shared.NAME` for its static shared memory, and symbols for global variables.
 */
#include "image/cubin.h"

#include <elf.h>
#include <string.h>

#define EIATTR_PARAM  0x17 /* one parameter: index, ordinal, offset, size in the upper bits */
#define EIATTR_MAXTID 0x05

struct elf {
    const uint8_t *data;
    size_t limit;
    Elf64_Ehdr header;
};

static bool range_is_inside(const struct elf *e, uint64_t offset, uint64_t bytes)
{
    return offset <= e->limit && bytes <= e->limit - offset;
}

static bool section_read(const struct elf *e, uint32_t i, Elf64_Shdr *out)
{
    uint64_t at = e->header.e_shoff + (uint64_t)i * e->header.e_shentsize;
    if (i >= e->header.e_shnum || !range_is_inside(e, at, sizeof *out)) return false;
    memcpy(out, e->data + at, sizeof *out);
    return out->sh_type == SHT_NOBITS || range_is_inside(e, out->sh_offset, out->sh_size);
}

/* A NUL-terminated name in a string section, or NULL. */
static const char *name_read(const struct elf *e, uint32_t strings, uint64_t offset)
{
    Elf64_Shdr s;
    if (!section_read(e, strings, &s) || s.sh_type == SHT_NOBITS || offset >= s.sh_size) return NULL;
    const char *p = (const char *)e->data + s.sh_offset + offset;
    return memchr(p, 0, s.sh_size - offset) ? p : NULL;
}

static void info_read(const struct elf *e, const Elf64_Shdr *s, struct entry_point *out)
{
    const uint8_t *p = e->data + s->sh_offset, *end = p + s->sh_size;
    while (end - p >= 4) {
        uint8_t format = p[0], attribute = p[1];
        uint16_t value;
        memcpy(&value, p + 2, sizeof value);
        p += 4;
        if (format != 4) continue; /* the attribute has only the value itself */
        if (value > end - p) return;
        if (attribute == EIATTR_PARAM && value >= 12) {
            uint16_t ordinal, offset;
            uint32_t packed;
            memcpy(&ordinal, p + 4, 2);
            memcpy(&offset, p + 6, 2);
            memcpy(&packed, p + 8, 4);
            if (ordinal < PARAMETERS_MAX) {
                out->parameter[ordinal] = (struct parameter){offset, packed >> 18};
                if (ordinal >= out->parameter_count) out->parameter_count = ordinal + 1u;
            }
        } else if (attribute == EIATTR_MAXTID && value >= 12) {
            uint32_t v[3];
            memcpy(v, p, sizeof v);
            uint64_t all = (uint64_t)v[0] * v[1] * v[2];
            if (all && all <= 1024) out->threads_max = (uint32_t)all;
        }
        p += value;
    }
    out->has_parameters = true;
}

static void entry_describe(const struct elf *e, const char *name, struct entry_point *out)
{
    Elf64_Shdr s;
    for (uint32_t i = 0; i < e->header.e_shnum; i++) {
        if (!section_read(e, i, &s)) continue;
        const char *n = name_read(e, e->header.e_shstrndx, s.sh_name);
        if (!n) continue;
        if (strncmp(n, ".nv.info.", 9) == 0 && strcmp(n + 9, name) == 0) info_read(e, &s, out);
        if (strncmp(n, ".nv.shared.", 11) == 0 && strcmp(n + 11, name) == 0)
            out->shared_bytes = (uint32_t)s.sh_size;
    }
}

static CUresult symbols_read(const struct elf *e, const Elf64_Shdr *table, struct image *image)
{
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table->sh_size; at += sizeof(Elf64_Sym)) {
        Elf64_Sym y;
        Elf64_Shdr s;
        memcpy(&y, e->data + table->sh_offset + at, sizeof y);
        if (ELF64_ST_TYPE(y.st_info) != STT_OBJECT || !y.st_size || !section_read(e, y.st_shndx, &s))
            continue;
        const char *where = name_read(e, e->header.e_shstrndx, s.sh_name),
                   *name = name_read(e, table->sh_link, y.st_name);
        if (!where || !name || strncmp(where, ".nv.", 4) != 0 ||
            (!strstr(where, "global") && !strstr(where, "constant")))
            continue;
        if (!image_add_global(image, name, strlen(name), y.st_size)) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult cubin_parse(const uint8_t *data, size_t limit, struct image *image)
{
    struct elf e = {.data = data, .limit = limit};
    if (limit < sizeof e.header) return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&e.header, data, sizeof e.header);
    if (e.header.e_ident[EI_CLASS] != ELFCLASS64 || e.header.e_machine != 190 /* EM_CUDA */ ||
        e.header.e_shentsize != sizeof(Elf64_Shdr))
        return CUDA_ERROR_INVALID_IMAGE;
    image->binary_version = e.header.e_flags & 0xFF;
    for (uint32_t i = 0; i < e.header.e_shnum; i++) {
        Elf64_Shdr s;
        if (!section_read(&e, i, &s)) continue;
        const char *name = name_read(&e, e.header.e_shstrndx, s.sh_name);
        if (!name) continue;
        if (s.sh_type == SHT_SYMTAB) {
            CUresult result = symbols_read(&e, &s, image);
            if (result != CUDA_SUCCESS) return result;
        }
        if (strncmp(name, ".text.", 6) != 0) continue;
        struct entry_point *p = image_add_entry(image, name + 6, strlen(name + 6));
        if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
        if (s.sh_info >> 24) p->registers = s.sh_info >> 24;
        image->code_bytes += s.sh_size;
        entry_describe(&e, name + 6, p);
    }
    return CUDA_SUCCESS;
}
