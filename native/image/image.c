/* Lists of the kernels and variables of an image, filled by the readers. */
#define _GNU_SOURCE
#include "image/image.h"

#include <stdlib.h>
#include <string.h>

void image_free(struct image *i)
{
    if (!i) return;
    for (size_t k = 0; k < i->entry_count; k++)
        free(i->entry[k].name);
    for (size_t k = 0; k < i->global_count; k++)
        free(i->global[k].name);
    free(i->ptx);
    free(i->entry);
    free(i->global);
    free(i);
}

bool image_keep_ptx(struct image *i, const char *text, size_t length)
{
    i->ptx = strndup(text, length);
    i->ptx_bytes = length;
    return i->ptx != NULL;
}

struct entry_point *image_add_entry(struct image *i, const char *name, size_t length)
{
    struct entry_point *more = realloc(i->entry, (i->entry_count + 1) * sizeof *more);
    if (!more) return NULL;
    i->entry = more;
    struct entry_point *e = &more[i->entry_count];
    memset(e, 0, sizeof *e);
    e->name = strndup(name, length);
    e->registers = 16;
    e->threads_max = 1024;
    if (!e->name) return NULL;
    i->entry_count++;
    return e;
}

bool image_add_global(struct image *i, const char *name, size_t length, uint64_t size)
{
    struct global_variable *more = realloc(i->global, (i->global_count + 1) * sizeof *more);
    if (!more) return false;
    i->global = more;
    more[i->global_count] = (struct global_variable){.name = strndup(name, length), .size = size};
    if (!more[i->global_count].name) return false;
    i->global_count++;
    return true;
}
