/* Names and their scopes. */
#include "sim/ptx/scope.h"

#include "sim/ptx/compiler.h"
#include "sim/ptx/storage.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 16384u

static uint32_t hash_of(const char *name, size_t length)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)name[i]) * 16777619u;
    return h;
}

struct symbol *scope_find(struct compiler *c, const char *name, size_t length)
{
    if (!c->bucket) return NULL;
    uint32_t h = hash_of(name, length);
    for (struct symbol *s = c->bucket[h % BUCKETS]; s; s = s->next) {
        if (s->hash == h && s->length == length && memcmp(s->name, name, length) == 0) return s;
    }
    return NULL;
}

struct symbol *scope_add(struct compiler *c, const char *name, size_t length, enum symbol_kind kind)
{
    if (!c->bucket) c->bucket = calloc(BUCKETS, sizeof *c->bucket);
    struct symbol *s = c->bucket ? calloc(1, sizeof *s) : NULL;
    if (!s) {
        out_of_memory(c);
        return NULL;
    }
    s->name = name;
    s->length = (uint32_t)length;
    s->hash = hash_of(name, length);
    s->kind = kind;
    s->scope = c->scope;
    s->next = c->bucket[s->hash % BUCKETS];
    c->bucket[s->hash % BUCKETS] = s;
    s->earlier = c->scope_symbols[c->scope];
    c->scope_symbols[c->scope] = s;
    return s;
}

static void symbol_unlink(struct compiler *c, struct symbol *s)
{
    for (struct symbol **p = &c->bucket[s->hash % BUCKETS]; *p; p = &(*p)->next) {
        if (*p != s) continue;
        *p = s->next;
        break;
    }
}

bool scope_open(struct compiler *c)
{
    if (c->scope + 1 >= DEPTH_SCOPES) return false;
    c->scope_symbols[++c->scope] = NULL;
    return true;
}

static void reference_resolve(struct compiler *c, const struct pending *p, uint32_t op)
{
    if (p->list)
        c->function->list[p->op] = op;
    else
        c->function->op[p->op].second = op;
}

/* Resolve references to labels of this scope; the others may be defined in an outer scope. */
static void labels_resolve(struct compiler *c)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->pending_count; i++) {
        struct pending p = c->pending[i];
        if (p.scope == c->scope) {
            const struct symbol *s = scope_find(c, p.name, p.length);
            if (s && s->kind == SYMBOL_LABEL && s->scope == c->scope) {
                reference_resolve(c, &p, s->index);
                continue;
            }
            if (p.scope <= 1) {
                report_error(c->report, p.line, "Unknown symbol '%.*s'",
                             (int)(p.length < 200 ? p.length : 200), p.name);
                continue;
            }
            p.scope--;
        }
        c->pending[kept++] = p;
    }
    c->pending_count = kept;
}

void scope_close(struct compiler *c)
{
    if (c->function) labels_resolve(c);
    for (struct symbol *s = c->scope_symbols[c->scope], *next; s; s = next) {
        next = s->earlier;
        symbol_unlink(c, s);
        free(s->place);
        free(s);
    }
    c->scope_symbols[c->scope] = NULL;
    if (c->scope) c->scope--;
}

void scope_end_unit(struct compiler *c)
{
    struct symbol **p = &c->scope_symbols[0];
    while (*p) {
        struct symbol *s = *p;
        bool seen = (s->kind == SYMBOL_FUNCTION &&
                     (c->program->function[s->index]->visible || c->program->function[s->index]->external)) ||
                    (s->kind == SYMBOL_VARIABLE && (s->space == SPACE_GLOBAL || s->space == SPACE_CONST) &&
                     (c->program->variable[s->index].visible || c->program->variable[s->index].external));
        if (seen) {
            p = &s->earlier;
            continue;
        }
        *p = s->earlier;
        symbol_unlink(c, s);
        free(s->place);
        free(s);
    }
}

void scope_free(struct compiler *c)
{
    c->function = NULL;
    while (c->bucket) {
        scope_close(c);
        if (!c->scope && !c->scope_symbols[0]) break;
    }
    free(c->bucket);
    free(c->pending);
    free(c->key);
}

bool scope_refer(struct compiler *c, const char *name, size_t length, uint32_t op, bool list)
{
    if (!array_reserve(c, &c->pending, &c->pending_capacity, c->pending_count, sizeof *c->pending))
        return false;
    c->pending[c->pending_count++] =
        (struct pending){name, (uint32_t)length, c->scope, c->text.line, op, list};
    return true;
}
