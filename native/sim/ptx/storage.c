/* Output of the compiler: operations, registers, constants and variables, in arrays that grow up to a limit. */
#include "sim/ptx/storage.h"

#include "sim/ptx/compiler.h"

#include <stdlib.h>
#include <string.h>

#define ELEMENTS_MAX (1u << 25)
#define REGISTER_MAX (64u << 20) /* bytes of a frame */
#define CONSTANT_MAX (512u << 20)

void out_of_memory(struct compiler *c)
{
    if (!c->limit_exceeded) report_error(c->report, c->text.line, "Out of memory, or larger than can be");
    c->limit_exceeded = true;
}

bool array_reserve(struct compiler *c, void *array, uint32_t *capacity, uint32_t count, size_t each)
{
    void **p = array, *old;
    if (count < *capacity) return true;
    uint32_t more = *capacity ? *capacity * 2 : 32;
    memcpy(&old, p, sizeof old);
    void *bigger = count >= ELEMENTS_MAX ? NULL : realloc(old, more * each);
    if (!bigger) {
        out_of_memory(c);
        return false;
    }
    memcpy(p, &bigger, sizeof bigger);
    *capacity = more;
    return true;
}

/* Always return an operation to write to: without memory, one that is never used. */
struct op *emit(struct compiler *c, op_fn *run)
{
    static __thread struct op nowhere;
    struct routine *f = c->function;
    nowhere = (struct op){0};
    if (!array_reserve(c, &f->op, &c->op_capacity, f->op_count, sizeof *f->op)) return &nowhere;
    struct op *o = &f->op[f->op_count++];
    *o = (struct op){.run = run, .guard = c->guard, .line = c->text.line};
    return o;
}

bool list_add(struct compiler *c, uint32_t value)
{
    struct routine *f = c->function;
    if (!array_reserve(c, &f->list, &c->list_capacity, f->list_count, sizeof *f->list)) return false;
    f->list[f->list_count++] = value;
    return true;
}

uint32_t register_new(struct compiler *c, uint32_t bytes)
{
    uint32_t at = c->register_bytes;
    if (at > REGISTER_MAX) {
        out_of_memory(c);
        return 0;
    }
    c->register_bytes += (bytes * LANES + 63) / 64 * 64;
    return at;
}

uint32_t predicate_new(struct compiler *c)
{
    if (!c->predicate_left) {
        c->predicate_at = register_new(c, 2);
        c->predicate_left = 16;
    }
    return c->predicate_at + 4 * (16 - c->predicate_left--);
}

static uint32_t constant_new(struct compiler *c, uint32_t width)
{
    struct program *p = c->program;
    uint32_t at = p->constant_bytes, bytes = (width * LANES + 63) / 64 * 64;
    if (at > CONSTANT_MAX) {
        out_of_memory(c);
        return 0;
    }
    if (at + bytes > c->constant_capacity) {
        uint32_t more = c->constant_capacity ? c->constant_capacity * 2 : 16384;
        uint8_t *bigger = realloc(p->constant, more);
        if (!bigger) {
            out_of_memory(c);
            return 0;
        }
        p->constant = bigger;
        c->constant_capacity = more;
    }
    memset(p->constant + at, 0, bytes);
    p->constant_bytes += bytes;
    return at;
}

static uint32_t constant_slot(const struct compiler *c, uint64_t bits, uint32_t width)
{
    uint64_t h = (bits ^ (uint64_t)width << 61) * 0x9e3779b97f4a7c15ull;
    uint32_t i = (uint32_t)(h >> 32) & (c->key_capacity - 1);
    while (c->key[i].width && (c->key[i].width != width || c->key[i].bits != bits))
        i = (i + 1) & (c->key_capacity - 1);
    return i;
}

static bool constant_keys_grow(struct compiler *c)
{
    struct constant_key *old = c->key;
    uint32_t n = c->key_capacity;
    struct constant_key *bigger = calloc(n ? 2ul * n : 256, sizeof *bigger);
    if (!bigger) return false;
    c->key = bigger;
    c->key_capacity = n ? 2 * n : 256;
    for (uint32_t i = 0; i < n; i++) {
        if (old[i].width) c->key[constant_slot(c, old[i].bits, old[i].width)] = old[i];
    }
    free(old);
    return true;
}

uint32_t constant_place(struct compiler *c, uint64_t bits, uint32_t width)
{
    if (c->key_count * 2 >= c->key_capacity && !constant_keys_grow(c)) {
        out_of_memory(c);
        return CONSTANT;
    }
    if (width < 8) bits &= (1ull << (8 * width)) - 1;
    struct constant_key *k = &c->key[constant_slot(c, bits, width)];
    if (k->width) return k->place;
    uint32_t at = constant_new(c, width);
    if (c->limit_exceeded) return CONSTANT;
    for (uint32_t i = 0; i < LANES; i++)
        memcpy(c->program->constant + at + i * width, &bits, width);
    *k = (struct constant_key){bits, width, at | CONSTANT};
    c->key_count++;
    return k->place;
}

uint32_t constant_address(struct compiler *c, uint32_t target, bool function, uint64_t addend, uint32_t width)
{
    struct program *p = c->program;
    for (uint32_t i = p->reloc_count, tries = 0; i > 0 && tries < 16; tries++) {
        const struct reloc *r = &p->reloc[--i];
        if (r->target == target && r->function == function && r->addend == addend && r->width == width)
            return (uint32_t)r->offset | CONSTANT;
    }
    uint32_t at = constant_new(c, width);
    if (c->limit_exceeded ||
        !array_reserve(c, &p->reloc, &c->reloc_capacity, p->reloc_count, sizeof *p->reloc))
        return CONSTANT;
    p->reloc[p->reloc_count++] = (struct reloc){
        .offset = at, .addend = addend, .target = target, .width = (uint8_t)width, .function = function};
    return at | CONSTANT;
}

struct variable *variable_new(struct compiler *c, uint32_t *index)
{
    struct program *p = c->program;
    if (!array_reserve(c, &p->variable, &c->variable_capacity, p->variable_count, sizeof *p->variable))
        return NULL;
    *index = p->variable_count++;
    p->variable[*index] = (struct variable){0};
    return &p->variable[*index];
}

struct routine *function_new(struct compiler *c, const char *name, size_t length, uint32_t *index)
{
    struct program *p = c->program;
    if (!array_reserve(c, &p->function, &c->function_capacity, p->function_count, sizeof(struct routine *)))
        return NULL;
    struct routine *f = calloc(1, sizeof *f);
    if (f) f->name = strndup(name, length);
    if (!f || !f->name) {
        free(f);
        out_of_memory(c);
        return NULL;
    }
    *index = p->function_count;
    p->function[p->function_count++] = f;
    return f;
}
