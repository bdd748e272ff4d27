#include "remote/client/api/export_table.h"

#include <stdio.h>

static const struct cb_counters_table counters_table = {sizeof counters_table, &cb_counters};

/*
 * NVIDIA's libraries ask for these tables. They are not part of the driver API; one of them proves that the
 * driver is NVIDIA's own, from addresses and identities of the calling process. It cannot be computed on
 * another machine, and is not served.
 */
static const struct {
    unsigned char id[16];
    const char *role;
} tables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9},
     "modules of the runtime library"},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc},
     "storage of tools by thread"},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66},
     "hooks of tools"},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93},
     "storage by context"},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2},
     "the authenticity of the driver"},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e},
     "checks of contexts"},
};

static const char *table_role(const CUuuid *id)
{
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        if (memcmp(tables[i].id, id->bytes, sizeof tables[i].id) == 0) return tables[i].role;
    }
    return "unknown";
}

EXPORT CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    static const unsigned char own_id[16] = {0xc0, 0xa1, 0xab, 0xa5, 0x00, 0x01, 0x4c, 0x6f,
                                             0x9d, 0x2e, 0x5c, 0xa1, 0xab, 0x1e, 0x00, 0x01};
    static bool told;
    if (!ppExportTable || !pExportTableId) return CUDA_ERROR_INVALID_VALUE;
    *ppExportTable = NULL;
    if (memcmp(pExportTableId->bytes, own_id, sizeof own_id) == 0) {
        *ppExportTable = &counters_table;
        return CUDA_SUCCESS;
    }
    if (!__atomic_exchange_n(&told, true, __ATOMIC_RELAXED) && getenv("CALABASH_DEBUG"))
        fprintf(stderr, "calabash: the driver's internal table (%s) is not available on a remote GPU\n",
                table_role(pExportTableId));
    return CUDA_ERROR_NOT_SUPPORTED;
}
