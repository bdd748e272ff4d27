#include "image/bytes.h"

#include <elf.h>
#include <stdint.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243B1u
#define FATBIN_MAGIC  0xBA55ED50u
#define IMAGE_MAX     (1ull << 31)

static size_t elf_bytes(const uint8_t *data)
{
    Elf64_Ehdr h;
    memcpy(&h, data, sizeof h);
    uint64_t sections = h.e_shoff + (uint64_t)h.e_shnum * h.e_shentsize;
    uint64_t programs = h.e_phoff + (uint64_t)h.e_phnum * h.e_phentsize;
    uint64_t end = sections > programs ? sections : programs;
    if (end > IMAGE_MAX || h.e_shentsize != sizeof(Elf64_Shdr)) return 0;
    for (uint16_t i = 0; i < h.e_shnum; i++) { /* the table of sections need not be last */
        Elf64_Shdr s;
        memcpy(&s, data + h.e_shoff + (uint64_t)i * sizeof s, sizeof s);
        if (s.sh_type == SHT_NOBITS) continue;
        if (s.sh_offset > IMAGE_MAX || s.sh_size > IMAGE_MAX) return 0;
        if (s.sh_offset + s.sh_size > end) end = s.sh_offset + s.sh_size;
    }
    return end <= IMAGE_MAX ? end : 0;
}

static size_t fatbin_bytes(const uint8_t *data)
{
    uint16_t header;
    uint64_t bytes;
    memcpy(&header, data + 6, sizeof header);
    memcpy(&bytes, data + 8, sizeof bytes);
    return header >= 16 && bytes <= IMAGE_MAX ? header + bytes : 0;
}

size_t image_bytes(const void **image, size_t limit)
{
    uint32_t magic;
    size_t bytes;
    if (limit && limit < sizeof magic) return 0;
    memcpy(&magic, *image, sizeof magic);
    if (magic == WRAPPER_MAGIC) {
        const void *inside;
        if (limit) return 0; /* its pointers are invalid in a file */
        memcpy(&inside, (const uint8_t *)*image + 8, sizeof inside);
        if (!inside) return 0;
        *image = inside;
        memcpy(&magic, inside, sizeof magic);
    }
    if (limit && limit < sizeof(Elf64_Ehdr)) return strnlen(*image, limit) + 1;
    if (magic == FATBIN_MAGIC)
        bytes = fatbin_bytes(*image);
    else if (memcmp(&magic, ELFMAG, SELFMAG) == 0)
        bytes = elf_bytes(*image);
    else
        bytes = limit ? strnlen(*image, limit) + 1 : strnlen(*image, IMAGE_MAX) + 1;
    return limit && bytes > limit + 1 ? 0 : bytes;
}
