/* Freeing of a compiled module. */
#include "sim/ptx/program.h"

#include <stdlib.h>
#include <string.h>

static void function_free(struct routine *f)
{
    free(f->name);
    free(f->parameter);
    free(f->result);
    for (uint32_t i = 0; i < f->op_count; i++) {
        if (f->op[i].extra && f->op[i].shape == UINT8_MAX) free((void *)f->op[i].extra);
    }
    free(f->op);
    free(f->list);
    free(f->refused);
    free(f);
}

void program_free(struct program *p)
{
    if (!p) return;
    for (uint32_t i = 0; i < p->variable_count; i++) {
        free(p->variable[i].name);
        free(p->variable[i].initial);
        free(p->variable[i].reloc);
    }
    for (uint32_t i = 0; i < p->function_count; i++)
        function_free(p->function[i]);
    free(p->variable);
    free(p->function);
    free(p->constant);
    free(p->reloc);
    free(p);
}

struct routine *program_entry(const struct program *p, const char *name)
{
    for (uint32_t i = 0; p && i < p->function_count; i++) {
        struct routine *f = p->function[i];
        if (f->entry && f->defined && strcmp(f->name, name) == 0) return f;
    }
    return NULL;
}
