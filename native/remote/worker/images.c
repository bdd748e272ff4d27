#include "remote/worker/images.h"

#include "remote/worker/shelf.h"

#include <stdlib.h>
#include <string.h>

#define KEPT_MAX   16u
#define KEPT_BYTES (64u << 20)

static struct kept {
    uint8_t hash[CB_HASH_BYTES];
    uint8_t *data;
    size_t bytes;
} kept[KEPT_MAX]; /* the youngest first; no gaps */

static void insert(const uint8_t hash[CB_HASH_BYTES], void *data, size_t bytes)
{
    size_t all = bytes;
    free(kept[KEPT_MAX - 1].data);
    memmove(&kept[1], &kept[0], (KEPT_MAX - 1) * sizeof kept[0]);
    memcpy(kept[0].hash, hash, CB_HASH_BYTES);
    kept[0].data = data;
    kept[0].bytes = bytes;
    for (size_t i = 1; i < KEPT_MAX; i++) {
        all += kept[i].bytes;
        if (all <= KEPT_BYTES) continue;
        free(kept[i].data);
        kept[i] = (struct kept){{0}, NULL, 0};
    }
}

const void *cb_images_find(const uint8_t hash[CB_HASH_BYTES], size_t bytes)
{
    for (size_t i = 0; i < KEPT_MAX; i++) {
        const struct kept *k = &kept[i];
        if (k->data && k->bytes == bytes && memcmp(k->hash, hash, CB_HASH_BYTES) == 0) return k->data;
    }
    void *data = cb_shelf_read(hash, bytes);
    if (data) insert(hash, data, bytes);
    return data;
}

void cb_images_put(const uint8_t hash[CB_HASH_BYTES], void *data, size_t bytes)
{
    insert(hash, data, bytes);
    cb_shelf_write(hash, data, bytes);
}
