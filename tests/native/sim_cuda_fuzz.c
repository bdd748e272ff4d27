/* Fuzzer of the code image readers: `ROUNDS FILE...`. Any outcome is accepted except a fault. */
#include "image/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char source[1 << 22];

static unsigned int pick(unsigned int *seed, size_t most)
{
    return most ? (unsigned int)((size_t)rand_r(seed) % most) : 0;
}

/* A copy of exactly the size that is passed, so that a read behind its end is detected. */
static int damaged(unsigned int *seed, size_t length)
{
    struct image *image;
    size_t size = pick(seed, 4) ? length : pick(seed, length + 1);
    unsigned char *copy = malloc(size ? size : 1);
    memcpy(copy, source, size);
    for (unsigned int i = pick(seed, 8); size && i > 0; i--) {
        size_t at = pick(seed, 3) && size > 256 ? pick(seed, 256) : pick(seed, size);
        copy[at] = pick(seed, 4) ? (unsigned char)rand_r(seed) : 255;
    }
    int good = size && image_parse(copy, size, 80, &image) == CUDA_SUCCESS;
    if (good) image_free(image);
    free(copy);
    return good;
}

int main(int argc, char **argv)
{
    unsigned int seed = 1;
    for (int i = 2; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        size_t length = f ? fread(source, 1, sizeof source, f) : 0;
        struct image *image;
        if (!length || image_parse(source, length, 80, &image) != CUDA_SUCCESS) {
            fprintf(stderr, "%s: not an image\n", argv[i]);
            return 1;
        }
        image_free(image);
        fclose(f);
        int good = 0;
        for (int round = 0; round < atoi(argv[1]); round++)
            good += damaged(&seed, length);
        printf("%s: %d read\n", argv[i], good);
    }
    return 0;
}
