/* Detection of image kinds, and reading of fatbins: choice of the entry for the device, and unpacking. */
#include "image/parse.h"

#include "image/cubin.h"
#include "image/ptx.h"
#include "image/zstd.h"

#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243B1u
#define FATBIN_MAGIC  0xBA55ED50u
#define ELF_MAGIC     0x464C457Fu
#define FLAG_LZ4      0x2000u
#define FLAG_ZSTD     0x8000u
#define IMAGE_MAX     (1ull << 31)

struct fat_wrapper {
    uint32_t magic, version;
    const void *data;
    const void *file;
};

struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};

struct fat_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes; /* payload, padded */
    uint32_t packed_bytes, reserved0;
    uint16_t minor, major;
    uint32_t architecture;
    uint32_t name_offset, name_bytes;
    uint64_t flags, reserved1;
    uint64_t unpacked_bytes;
};

_Static_assert(sizeof(struct fat_header) == 16 && sizeof(struct fat_entry) == 64,
               "layouts of the fatbin format");

/*
 * Unpack the LZ4 block format: sequences of (token, literals, offset, match). Return the bytes written, or 0 if
 * malformed.
 */
static size_t unpack_lz4(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t capacity)
{
    size_t i = 0, o = 0;
    while (i < in_bytes) {
        uint8_t token = in[i++];
        size_t literals = token >> 4, match = token & 15;
        if (literals == 15) {
            uint8_t b;
            do {
                if (i >= in_bytes) return 0;
                b = in[i++];
                literals += b;
            } while (b == 255);
        }
        if (literals > in_bytes - i || literals > capacity - o) return 0;
        memcpy(out + o, in + i, literals);
        i += literals;
        o += literals;
        if (i >= in_bytes || o == capacity) return o;
        if (in_bytes - i < 2) return 0;
        size_t offset = in[i] | (size_t)in[i + 1] << 8;
        i += 2;
        if (match == 15) {
            uint8_t b;
            do {
                if (i >= in_bytes) return 0;
                b = in[i++];
                match += b;
            } while (b == 255);
        }
        match += 4;
        if (offset == 0 || offset > o || match > capacity - o) return 0;
        for (; match; match--, o++)
            out[o] = out[o - offset];
    }
    return o;
}

/* The content of an entry: in place, or in *unpacked, which the caller frees. */
static CUresult entry_unpack(const struct fat_entry *e, const uint8_t **payload, size_t *bytes,
                             uint8_t **unpacked)
{
    *bytes = e->bytes;
    if (!(e->flags & (FLAG_LZ4 | FLAG_ZSTD))) return CUDA_SUCCESS;
    if (e->unpacked_bytes == 0 || e->unpacked_bytes > IMAGE_MAX || e->packed_bytes > e->bytes)
        return CUDA_ERROR_INVALID_IMAGE;
    *unpacked = calloc(1, e->unpacked_bytes + 1);
    if (!*unpacked) return CUDA_ERROR_OUT_OF_MEMORY;
    *bytes = (e->flags & FLAG_ZSTD ? unpack_zstd : unpack_lz4)(*payload, e->packed_bytes, *unpacked,
                                                               e->unpacked_bytes);
    *payload = *unpacked;
    return CUDA_SUCCESS;
}

static CUresult parse_entry(const struct fat_entry *e, const uint8_t *payload, uint32_t sm,
                            struct image *image)
{
    uint8_t *unpacked = NULL;
    size_t bytes;
    CUresult packed = entry_unpack(e, &payload, &bytes, &unpacked);
    if (packed != CUDA_SUCCESS) return packed;
    CUresult result;
    if (bytes == 0)
        result = CUDA_ERROR_INVALID_IMAGE;
    else if (e->kind == 2)
        result = cubin_parse(payload, bytes, image);
    else
        result = ptx_parse((const char *)payload, strnlen((const char *)payload, bytes), sm, image);
    free(unpacked);
    return result;
}

/* Suitability of an entry for the device; 0: not suitable. */
static int suitability(const struct fat_entry *e, uint32_t sm)
{
    if (e->flags & FLAG_ZSTD && !zstd_available()) return 0;
    if (e->kind == 2 && e->architecture / 10 == sm / 10 && e->architecture <= sm)
        return 1000 + (int)e->architecture;
    if (e->kind == 1 && e->architecture <= sm) return 1 + (int)e->architecture;
    return 0;
}

/* Keep the text of a PTX entry, which shows what a cubin beside it does. */
static void entry_keep_text(const uint8_t *at, struct image *image)
{
    struct fat_entry e;
    memcpy(&e, at, sizeof e);
    const uint8_t *payload = at + e.header_bytes;
    uint8_t *unpacked = NULL;
    size_t bytes;
    if (entry_unpack(&e, &payload, &bytes, &unpacked) == CUDA_SUCCESS)
        image_keep_ptx(image, (const char *)payload, strnlen((const char *)payload, bytes));
    free(unpacked);
}

static CUresult parse_fatbin(const uint8_t *data, size_t limit, uint32_t sm, struct image *image)
{
    struct fat_header h;
    if (limit && limit < sizeof h) return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&h, data, sizeof h);
    if (h.header_bytes < sizeof h || h.bytes > IMAGE_MAX) return CUDA_ERROR_INVALID_IMAGE;
    if (limit && (h.header_bytes > limit || h.bytes > limit - h.header_bytes))
        return CUDA_ERROR_INVALID_IMAGE;
    const uint8_t *best = NULL;
    const uint8_t *best_text = NULL; /* text that can be executed, beside a cubin */
    int best_score = 0, text_score = 0;
    for (size_t at = 0; at + sizeof(struct fat_entry) <= h.bytes;) {
        struct fat_entry e;
        const uint8_t *p = data + h.header_bytes + at;
        memcpy(&e, p, sizeof e);
        if (e.header_bytes < sizeof e || e.header_bytes > h.bytes - at ||
            e.bytes > h.bytes - at - e.header_bytes)
            break;
        if (suitability(&e, sm) > best_score) {
            best_score = suitability(&e, sm);
            best = p;
        }
        if (e.kind == 1 && suitability(&e, sm) > text_score) {
            text_score = suitability(&e, sm);
            best_text = p;
        }
        at += e.header_bytes + e.bytes;
    }
    if (!best) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    struct fat_entry e;
    memcpy(&e, best, sizeof e);
    CUresult result = parse_entry(&e, best + e.header_bytes, sm, image);
    if (result == CUDA_SUCCESS && e.kind == 2 && best_text) entry_keep_text(best_text, image);
    return result;
}

CUresult image_parse(const void *data, size_t limit, uint32_t device_sm, struct image **out)
{
    uint32_t magic;
    if (!data || (limit && limit < sizeof magic)) return CUDA_ERROR_INVALID_VALUE;
    struct image *image = calloc(1, sizeof *image);
    if (!image) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(&magic, data, sizeof magic);
    if (magic == WRAPPER_MAGIC && limit == 0) { /* contains a pointer, so it is never read from a file */
        data = ((const struct fat_wrapper *)data)->data;
        if (data) memcpy(&magic, data, sizeof magic);
        limit = 0;
    }
    CUresult result = CUDA_ERROR_INVALID_IMAGE;
    if (!data)
        result = CUDA_ERROR_INVALID_IMAGE;
    else if (magic == FATBIN_MAGIC)
        result = parse_fatbin(data, limit, device_sm, image);
    else if (magic == ELF_MAGIC)
        result = cubin_parse(data, limit ? limit : IMAGE_MAX, image);
    else
        result = ptx_parse(data, limit ? strnlen(data, limit) : strlen(data), device_sm, image);
    if (result != CUDA_SUCCESS) {
        image_free(image);
        return result;
    }
    *out = image;
    return CUDA_SUCCESS;
}
