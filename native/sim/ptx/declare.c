/* Declarations: registers, and variables of every space with their initialisers. */
#include "sim/ptx/declare.h"

#include "sim/ptx/compiler.h"
#include "sim/ptx/scope.h"
#include "sim/ptx/storage.h"

#include <stdlib.h>
#include <string.h>

#define BYTES_MAX   (1ull << 32)
#define ROW_MAX     (1u << 22)
#define ROWS_MAX    (1u << 24) /* of a module */
#define INITIAL_MAX (1ull << 28)

static void report_expected(struct compiler *c, const char *what)
{
    report_error(c->report, c->text.line, "Parsing error near '%.*s': expected %s",
                 (int)(c->text.length < 80 ? c->text.length : 80), c->text.at, what);
}

static bool number_read(struct compiler *c, uint64_t *out)
{
    struct literal v;
    if (!text_literal(&c->text, &v) || v.floating) return false;
    *out = v.bits;
    text_next(&c->text);
    return true;
}

static bool attribute_read(struct compiler *c, struct declared *d)
{
    uint64_t n;
    struct text *t = &c->text;
    if (text_take(t, ".align")) {
        if (!number_read(c, &n) || n == 0 || n > 1024 || (n & (n - 1))) return false;
        d->alignment = (uint32_t)n;
        return true;
    }
    if (text_take(t, ".attribute")) {
        while (t->kind != TOKEN_END && !text_is(t, ")"))
            text_next(t);
        return text_take(t, ")");
    }
    if (text_is(t, ".v2") || text_is(t, ".v4") || text_is(t, ".v8")) {
        d->vector = (uint32_t)(t->at[2] - '0');
        text_next(t);
        return true;
    }
    if (text_is(t, ".texref") || text_is(t, ".surfref") || text_is(t, ".samplerref")) {
        d->type = T_B64;
        d->opaque = true;
        text_next(t);
        return true;
    }
    enum type type = t->at[0] == '.' ? type_named(t->at + 1, t->length - 1) : T_NONE;
    if (type) {
        d->type = type;
        text_next(t);
        return true;
    }
    /* .ptr .global .align 8: what a parameter points to; that alignment is not the parameter's */
    if (text_take(t, ".ptr")) {
        while (t->kind == TOKEN_WORD && t->at[0] == '.') {
            bool align = text_is(t, ".align");
            text_next(t);
            if (align) text_next(t);
        }
        return true;
    }
    return false;
}

static bool dimensions_read(struct compiler *c, struct declared *d)
{
    while (text_take(&c->text, "[")) {
        uint64_t n = 0;
        if (!text_is(&c->text, "]") && !number_read(c, &n)) return false;
        if (!text_take(&c->text, "]")) return false;
        if (n == 0) d->unsized = true;
        if (n > BYTES_MAX || d->bytes > BYTES_MAX / (n ? n : 1)) return false;
        d->bytes *= n;
    }
    return d->bytes <= BYTES_MAX;
}

bool declare_one(struct compiler *c, struct declared *d)
{
    struct text *t = &c->text;
    d->vector = d->vector ? d->vector : 1;
    while (t->kind == TOKEN_WORD && t->at[0] == '.') {
        if (!attribute_read(c, d)) {
            report_expected(c, "an attribute or a type");
            return false;
        }
    }
    if (!d->type || t->kind != TOKEN_WORD) {
        report_expected(c, d->type ? "a name" : "a type");
        return false;
    }
    d->name = (struct span_text){t->at, t->length};
    text_next(t);
    if (text_take(t, "<")) {
        uint64_t n;
        if (!number_read(c, &n) || n > ROW_MAX || !text_take(t, ">")) {
            report_expected(c, "a number of registers");
            return false;
        }
        d->row = (uint32_t)n;
    }
    d->bytes = (uint64_t)(d->type == T_PRED ? 1 : type_bytes(d->type)) * d->vector;
    if (!dimensions_read(c, d)) {
        report_expected(c, "a size");
        return false;
    }
    uint32_t natural = type_bytes(d->type) * d->vector;
    if (d->alignment < natural) d->alignment = natural > 16 ? 16 : natural;
    return true;
}

static bool declaration_end_read(struct compiler *c)
{
    if (text_take(&c->text, ";")) return true;
    report_expected(c, "';'");
    return false;
}

bool declare_registers(struct compiler *c)
{
    struct declared first = {.space = SPACE_REGISTER};
    do {
        struct declared d = first;
        if (!declare_one(c, &d)) return false;
        first.type = d.type;
        first.vector = d.vector;
        if (d.vector > 1)
            report_error(c->report, c->text.line, "Vector registers are not known to the simulation");
        c->rows += d.row;
        if (c->rows > ROWS_MAX) {
            out_of_memory(c);
            return false;
        }
        struct symbol *s = scope_add(c, d.name.at, d.name.length, SYMBOL_REGISTER);
        if (!s) return false;
        s->type = d.type;
        s->count = d.row;
        s->place = calloc(d.row ? d.row : 1, sizeof *s->place);
        if (!s->place) {
            out_of_memory(c);
            return false;
        }
    } while (text_take(&c->text, ","));
    return declaration_end_read(c);
}

/* ---- initialisers ---- */

struct filling {
    struct variable *v;
    uint32_t each;
    uint64_t at;
    uint32_t reloc_capacity;
};

static bool initializer_put_bits(struct compiler *c, struct filling *f, uint64_t bits)
{
    struct variable *v = f->v;
    if (f->at + f->each > v->bytes && !v->unsized) return false;
    if (f->at + f->each > v->initial_bytes) {
        uint64_t more = v->initial_bytes ? v->initial_bytes * 2 : 64; /* no more than is initialized */
        if (more > v->bytes && !v->unsized) more = v->bytes;
        uint8_t *bigger = more > INITIAL_MAX ? NULL : realloc(v->initial, more);
        if (!bigger) {
            out_of_memory(c);
            return false;
        }
        memset(bigger + v->initial_bytes, 0, more - v->initial_bytes);
        v->initial = bigger;
        v->initial_bytes = more;
    }
    memcpy(v->initial + f->at, &bits, f->each < 8 ? f->each : 8);
    f->at += f->each;
    if (v->unsized && v->bytes < f->at) v->bytes = f->at;
    return true;
}

static uint64_t literal_convert(struct literal l, bool negative, enum type t)
{
    double d;
    float s;
    if (l.floating == 4) {
        uint32_t bits = (uint32_t)l.bits;
        memcpy(&s, &bits, sizeof s);
        d = (double)s;
    } else if (l.floating == 8) {
        memcpy(&d, &l.bits, sizeof d);
    } else if (t == T_F32 || t == T_F64) {
        d = (double)l.bits;
    } else {
        return negative ? 0 - l.bits : l.bits;
    }
    if (negative) d = -d;
    if (t == T_F64 || (t != T_F32 && l.floating == 8)) {
        memcpy(&l.bits, &d, sizeof d);
        return l.bits;
    }
    uint32_t bits;
    s = (float)d;
    memcpy(&bits, &s, sizeof bits);
    return bits;
}

static bool initializer_address(struct compiler *c, struct filling *f)
{
    struct text *t = &c->text;
    bool generic = text_take(t, "generic");
    if (generic && !text_take(t, "(")) return false;
    const struct symbol *s = t->kind == TOKEN_WORD ? scope_find(c, t->at, t->length) : NULL;
    bool placed = s && (s->kind == SYMBOL_FUNCTION ||
                        (s->kind == SYMBOL_VARIABLE &&
                         (s->space == SPACE_GLOBAL || s->space == SPACE_CONST || s->space == SPACE_SHARED)));
    if (!placed) {
        report_error(c->report, t->line, "Unknown symbol '%.*s'", (int)(t->length < 200 ? t->length : 200),
                     t->at);
        return false;
    }
    text_next(t);
    if (generic && !text_take(t, ")")) return false;
    uint64_t plus = 0;
    if (text_take(t, "+") && !number_read(c, &plus)) return false;
    struct variable *v = f->v;
    if (s->kind == SYMBOL_VARIABLE && s->space == SPACE_SHARED)
        return initializer_put_bits(c, f, s->offset + plus);
    if (!array_reserve(c, &v->reloc, &f->reloc_capacity, v->reloc_count, sizeof *v->reloc)) return false;
    v->reloc[v->reloc_count++] = (struct reloc){.offset = f->at,
                                                .addend = plus,
                                                .target = s->index,
                                                .width = (uint8_t)f->each,
                                                .function = s->kind == SYMBOL_FUNCTION,
                                                .generic = generic};
    return f->each >= 4 && initializer_put_bits(c, f, 0);
}

static bool initializer_item(struct compiler *c, struct filling *f)
{
    struct text *t = &c->text;
    struct literal l;
    bool negative = text_take(t, "-");
    if (t->kind == TOKEN_NUMBER) {
        if (!text_literal(t, &l)) return false;
        text_next(t);
        return initializer_put_bits(c, f, literal_convert(l, negative, f->v->type));
    }
    return !negative && initializer_address(c, f);
}

static bool initializer_list(struct compiler *c, struct filling *f)
{
    uint32_t depth = 0;
    struct text *t = &c->text;
    if (!text_is(t, "{")) return initializer_item(c, f);
    do { /* nested braces are filled in order: PTX compilers write whole rows */
        while (text_take(t, "{"))
            depth++;
        if (!text_is(t, "}") && !initializer_item(c, f)) return false;
        while (text_is(t, "}") && depth) {
            depth--;
            text_next(t);
        }
    } while (depth && text_take(t, ",") && !c->limit_exceeded);
    return depth == 0;
}

/* ---- variables ---- */

static uint64_t aligned(uint64_t at, uint32_t alignment)
{
    return (at + alignment - 1) / alignment * alignment;
}

/* Determine the place of a variable in its space: in the program, an entry or a frame. */
static bool variable_place(struct compiler *c, const struct declared *d, struct symbol *s, bool external)
{
    struct routine *f = c->function;
    if (d->space == SPACE_SHARED && (external || d->unsized)) {
        s->offset = SHARED_DYNAMIC;
        c->program->has_dynamic_shared = true;
    } else if (d->space == SPACE_SHARED && f && f->entry) {
        s->offset = aligned(f->shared_bytes, d->alignment);
        if (s->offset + d->bytes > SHARED_MODULE) return false;
        f->shared_bytes = (uint32_t)(s->offset + d->bytes);
    } else if (d->space == SPACE_SHARED) {
        s->offset = SHARED_MODULE + aligned(c->program->shared_bytes, d->alignment);
        if (s->offset + d->bytes > SHARED_DYNAMIC) return false;
        c->program->shared_bytes = s->offset + d->bytes - SHARED_MODULE;
    } else if (f) {
        s->offset = aligned(f->local_bytes, d->alignment);
        if (s->offset + d->bytes > 1u << 19) return false;
        f->local_bytes = (uint32_t)(s->offset + d->bytes);
        s->space = SPACE_LOCAL;
    }
    return true;
}

static bool variable_declare(struct compiler *c, const struct declared *d, bool external, bool visible,
                             const struct symbol *known, struct symbol *s)
{
    uint32_t index;
    struct variable *v;
    if (known && known->kind == SYMBOL_VARIABLE && known->scope == c->scope &&
        (known->space == SPACE_GLOBAL || known->space == SPACE_CONST) &&
        (external || c->program->variable[known->index].external)) {
        index = known->index; /* declared before, now defined */
        v = &c->program->variable[index];
        if (external) { /* the existing definition is kept */
            s->index = index;
            return true;
        }
    } else {
        v = variable_new(c, &index);
        if (!v || !(v->name = strndup(d->name.at, d->name.length))) return false;
    }
    s->index = index;
    free(v->initial);
    free(v->reloc);
    v->initial = NULL;
    v->reloc = NULL;
    v->initial_bytes = v->reloc_count = 0;
    v->space = d->space;
    v->type = d->type;
    v->alignment = d->alignment;
    v->bytes = d->bytes;
    v->external = external;
    v->visible = visible;
    v->unsized = d->unsized;
    if (!text_take(&c->text, "=")) return true;
    struct filling f = {.v = v, .each = (uint32_t)type_bytes(d->type)};
    if (initializer_list(c, &f)) return true;
    if (!c->limit_exceeded) report_expected(c, "an initialiser");
    return false;
}

bool declare_variables(struct compiler *c, enum space space, bool external, bool visible)
{
    struct declared first = {.space = space};
    do {
        struct declared d = first;
        if (!declare_one(c, &d)) return false;
        first.type = d.type;
        first.alignment = d.alignment;
        const struct symbol *known = scope_find(c, d.name.at, d.name.length);
        struct symbol *s = scope_add(c, d.name.at, d.name.length, SYMBOL_VARIABLE);
        if (!s) return false;
        s->space = space;
        s->type = d.type;
        s->bytes = d.bytes;
        if (space == SPACE_GLOBAL || space == SPACE_CONST) {
            if (!variable_declare(c, &d, external, visible, known, s)) return false;
        } else if (!variable_place(c, &d, s, external)) {
            report_error(c->report, c->text.line, "'%.*s' is larger than can be",
                         (int)(d.name.length < 200 ? d.name.length : 200), d.name.at);
            return false;
        }
    } while (text_take(&c->text, ","));
    return declaration_end_read(c);
}
