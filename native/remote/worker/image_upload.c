#include "remote/worker/image_upload.h"

#include "remote/worker/generated.h"
#include "remote/worker/session.h"

#define IMAGE_MAX (1ull << 31)

static struct {
    uint8_t *data;
    size_t bytes, filled;
} image;

static void upload_drop(void)
{
    free(image.data);
    image.data = NULL;
    image.bytes = image.filled = 0;
}

CUresult cb_on_IMAGE(struct cb_request *q)
{
    uint64_t at = cb_take_word(q), bytes = cb_take_word(q), part = cb_take_word(q);
    if (!cb_taken(q) || CB_WORDS(part) != q->bulk || bytes > IMAGE_MAX || part > bytes || at > bytes - part)
        return CB_MALFORMED;
    if (at == 0) {
        upload_drop();
        image.data = malloc(CB_WORDS(bytes) + 8);
        image.bytes = bytes;
    }
    if (!image.data) return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes != image.bytes || at != image.filled || (part % 8 && at + part != bytes)) return CB_MALFORMED;
    image.filled += part;
    return cb_bulk_receive(q, image.data + at, CB_WORDS(part)) ? CUDA_SUCCESS : CB_MALFORMED;
}

const void *cb_upload_named(struct cb_request *q, size_t *bytes)
{
    uint8_t wanted[CB_HASH_BYTES], found[CB_HASH_BYTES];
    *bytes = cb_take_word(q);
    cb_take_bytes(q, wanted, sizeof wanted);
    if (q->bad) return NULL;
    if (image.data && image.filled == image.bytes && image.bytes == *bytes) {
        cb_hash(image.data, image.bytes, found);
        q->bad = memcmp(found, wanted, sizeof found) != 0;
        if (q->bad) return NULL;
        memset(image.data + image.bytes, 0, 8); /* a zero terminates text */
        cb_images_put(wanted, image.data, image.bytes);
        image.data = NULL; /* the image table owns it now */
    }
    upload_drop();
    return cb_images_find(wanted, *bytes);
}
