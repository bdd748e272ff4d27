#include "remote/worker/images.h"

#include "remote/worker/image_store.h"

#include <stdlib.h>
#include <string.h>

#define KEPT_MAX   16u
#define KEPT_BYTES (64u << 20)

static struct recent_images {
    uint8_t hash[CB_HASH_BYTES];
    uint8_t *data;
    size_t bytes;
} recent_images[KEPT_MAX]; /* the most recent first; no gaps */

static void image_insert(const uint8_t hash[CB_HASH_BYTES], void *data, size_t bytes)
{
    size_t all = bytes;
    free(recent_images[KEPT_MAX - 1].data);
    memmove(&recent_images[1], &recent_images[0], (KEPT_MAX - 1) * sizeof recent_images[0]);
    memcpy(recent_images[0].hash, hash, CB_HASH_BYTES);
    recent_images[0].data = data;
    recent_images[0].bytes = bytes;
    for (size_t i = 1; i < KEPT_MAX; i++) {
        all += recent_images[i].bytes;
        if (all <= KEPT_BYTES) continue;
        free(recent_images[i].data);
        recent_images[i] = (struct recent_images){{0}, NULL, 0};
    }
}

const void *cb_images_find(const uint8_t hash[CB_HASH_BYTES], size_t bytes)
{
    for (size_t i = 0; i < KEPT_MAX; i++) {
        const struct recent_images *k = &recent_images[i];
        if (k->data && k->bytes == bytes && memcmp(k->hash, hash, CB_HASH_BYTES) == 0) return k->data;
    }
    void *data = cb_image_store_read(hash, bytes);
    if (data) image_insert(hash, data, bytes);
    return data;
}

void cb_images_put(const uint8_t hash[CB_HASH_BYTES], void *data, size_t bytes)
{
    image_insert(hash, data, bytes);
    cb_image_store_write(hash, data, bytes);
}
