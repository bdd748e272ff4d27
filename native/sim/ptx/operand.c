/* Operands: reading them, and the places that handlers access. */
#include "sim/ptx/operand.h"

#include "sim/ptx/access.h"
#include "sim/ptx/compiler.h"
#include "sim/ptx/lane_address.h"
#include "sim/ptx/scope.h"
#include "sim/ptx/special.h"
#include "sim/ptx/storage.h"

#include <ctype.h>
#include <string.h>

#define DIGITS_MAX 10u /* of a register's number */

bool span_is(struct span_text s, const char *text)
{
    return strlen(text) == s.length && memcmp(s.at, text, s.length) == 0;
}

static uint32_t register_place(struct compiler *c, struct symbol *s, uint32_t index)
{
    uint32_t *p = &s->place[index];
    if (!*p) *p = 1 + (s->type == T_PRED ? predicate_new(c) : register_new(c, type_bytes(s->type)));
    return *p - 1;
}

/* A register by its name, or by the name of its row and its number. */
static bool register_find(struct compiler *c, const char *name, size_t length, struct symbol **out,
                          uint32_t *index)
{
    struct symbol *s = scope_find(c, name, length);
    *index = 0;
    *out = s;
    if (s) return s->kind == SYMBOL_REGISTER && s->count == 0;
    size_t n = length;
    while (n > 1 && length - n < DIGITS_MAX && isdigit((unsigned char)name[n - 1]))
        n--;
    /* %r10 may be number 10 of %r, or 0 of %r1. */
    for (; n < length; n++) {
        uint64_t v = 0;
        for (size_t i = n; i < length && v < UINT32_MAX; i++)
            v = v * 10 + (uint64_t)(name[i] - '0');
        s = scope_find(c, name, n);
        if (s && s->kind == SYMBOL_REGISTER && v < s->count) {
            *out = s;
            *index = (uint32_t)v;
            return true;
        }
    }
    return false;
}

static bool name_read(struct compiler *c, struct operand *o)
{
    struct text *t = &c->text;
    struct symbol *s;
    uint32_t index;
    o->name = (struct span_text){t->at, t->length};
    if (t->length == 1 && t->at[0] == '_') {
        o->kind = OPERAND_SINK;
    } else if (register_find(c, t->at, t->length, &s, &index)) {
        o->kind = OPERAND_REGISTER;
        o->type = s->type;
        o->place = register_place(c, s, index);
    } else if (s && s->kind == SYMBOL_REGISTER) {
        return false;
    } else if ((o->special = special_named(t->at, t->length))) {
        o->kind = OPERAND_SPECIAL;
    } else if (text_is(t, "WARP_SZ")) {
        o->kind = OPERAND_LITERAL;
        o->literal = (struct literal){.bits = LANES};
    } else if (s && (s->kind == SYMBOL_VARIABLE || s->kind == SYMBOL_FUNCTION)) {
        o->kind = OPERAND_SYMBOL;
        o->symbol = s;
    } else {
        o->kind = OPERAND_NAME;
        o->symbol = s;
    }
    text_next(t);
    return true;
}

static bool number_read(struct compiler *c, struct literal *l)
{
    bool negative = text_take(&c->text, "-");
    if (!text_literal(&c->text, l)) return false;
    if (negative)
        l->bits = l->floating == 4 ? l->bits ^ 0x80000000u : l->floating ? l->bits ^ 1ull << 63 : 0 - l->bits;
    text_next(&c->text);
    return true;
}

static bool offset_read(struct compiler *c, struct operand *o)
{
    struct literal l;
    if (text_is(&c->text, "-") || text_take(&c->text, "+")) {
        if (!number_read(c, &l) || l.floating) return false;
        o->offset = (int64_t)l.bits;
    }
    return true;
}

/* variable[3]: the address of an element. */
static bool element_read(struct compiler *c, struct operand *o)
{
    struct literal l;
    if (o->kind != OPERAND_SYMBOL || o->symbol->kind != SYMBOL_VARIABLE || !text_take(&c->text, "["))
        return offset_read(c, o);
    if (!number_read(c, &l) || l.floating || l.bits > UINT32_MAX) return false;
    o->offset = (int64_t)(l.bits * type_bytes(o->symbol->type));
    return text_take(&c->text, "]");
}

static bool address_read(struct compiler *c, struct operand *o)
{
    struct text *t = &c->text;
    if (t->kind == TOKEN_NUMBER || text_is(t, "-")) {
        struct literal l;
        if (!number_read(c, &l)) return false;
        o->offset = (int64_t)l.bits;
    } else if (t->kind == TOKEN_WORD) {
        if (!name_read(c, o)) return false;
        o->has_base = o->kind == OPERAND_REGISTER;
        if (o->kind == OPERAND_NAME) {
            report_error(c->report, t->line, "Unknown symbol '%.*s'",
                         (int)(o->name.length < 200 ? o->name.length : 200), o->name.at);
            return false;
        }
        if (!o->has_base && o->kind != OPERAND_SYMBOL) return false;
        if (!element_read(c, o)) return false;
    } else {
        return false;
    }
    o->kind = OPERAND_ADDRESS;
    return text_take(t, "]");
}

static bool vector_read(struct compiler *c, struct instruction *n, struct operand *o)
{
    o->kind = OPERAND_VECTOR;
    o->item = n->items;
    do {
        if (n->items == ITEMS_MAX || !operand_read(c, n, &n->item[n->items], true)) return false;
        n->items++;
        o->items++;
    } while (text_take(&c->text, ","));
    return text_take(&c->text, "}");
}

bool operand_read(struct compiler *c, struct instruction *n, struct operand *o, bool nested)
{
    struct text *t = &c->text;
    *o = (struct operand){0};
    if (text_take(t, "[")) return !nested && address_read(c, o);
    if (text_take(t, "{")) return !nested && vector_read(c, n, o);
    o->negated = text_take(t, "!");
    if (t->kind == TOKEN_NUMBER || text_is(t, "-")) {
        o->kind = OPERAND_LITERAL;
        return number_read(c, &o->literal);
    }
    if (t->kind != TOKEN_WORD || !name_read(c, o)) return false;
    if (o->kind == OPERAND_SYMBOL) return element_read(c, o);
    if (text_take(t, "|")) {
        struct operand second = {0};
        if (!name_read(c, &second)) return false;
        if (second.kind == OPERAND_SINK)
            second.place = predicate_new(c);
        else if (second.kind != OPERAND_REGISTER || second.type != T_PRED)
            return false;
        o->has_second = true;
        o->second = second.place;
    }
    return true;
}

/* ---- places ---- */

static uint64_t literal_bits(const struct operand *o, enum type t)
{
    struct literal l = o->literal;
    double d;
    float s;
    if (t != T_F32 && t != T_F64) return l.bits;
    if (l.floating == 4) {
        uint32_t bits = (uint32_t)l.bits;
        if (t == T_F32) return bits;
        memcpy(&s, &bits, sizeof s);
        d = (double)s;
    } else if (l.floating == 8) {
        memcpy(&d, &l.bits, sizeof d);
    } else {
        d = (double)(int64_t)l.bits;
    }
    if (t == T_F64) {
        memcpy(&l.bits, &d, sizeof d);
        return l.bits;
    }
    uint32_t bits;
    s = (float)d;
    memcpy(&bits, &s, sizeof bits);
    return bits;
}

/* A variable's address as a value: known now, when the variable is placed, or when the frame is made. */
static uint32_t address_value(struct compiler *c, const struct operand *o, uint32_t width)
{
    const struct symbol *s = o->symbol;
    if (s->kind == SYMBOL_FUNCTION) return constant_address(c, s->index, true, 0, width);
    if (s->space == SPACE_GLOBAL || s->space == SPACE_CONST)
        return constant_address(c, s->index, false, (uint64_t)o->offset, width);
    if (s->space != SPACE_LOCAL) return constant_place(c, s->offset + (uint64_t)o->offset, width);
    uint32_t at = register_new(c, width);
    struct op *p = emit(c, op_frame_address);
    p->d = at;
    p->width = (uint8_t)width;
    p->immediate = (int64_t)(s->offset + (uint64_t)o->offset);
    return at;
}

static bool operand_place(struct compiler *c, const struct operand *o, enum type t, uint32_t width,
                          uint32_t *place)
{
    if (width > 8) return false;
    switch (o->kind) {
    case OPERAND_LITERAL:
        *place = constant_place(c, literal_bits(o, t), width);
        return true;
    case OPERAND_SYMBOL:
        if (width < 4) return false;
        *place = address_value(c, o, width);
        return true;
    case OPERAND_SPECIAL: {
        *place = register_new(c, width);
        struct op *p = emit(c, op_special);
        p->d = *place;
        p->width = (uint8_t)width;
        p->flag = o->special;
        return true;
    }
    default:
        return false;
    }
}

bool operand_source(struct compiler *c, const struct operand *o, enum type t, uint32_t *place)
{
    if (o->negated || o->has_second) return false;
    if (o->kind == OPERAND_REGISTER) {
        *place = o->place;
        return (o->type == T_PRED) == (t == T_PRED) && type_bytes(o->type) == type_bytes(t);
    }
    if (t == T_PRED) {
        if (o->kind != OPERAND_LITERAL) return false;
        *place = constant_place(c, o->literal.bits ? UINT32_MAX : 0, 4);
        return true;
    }
    return operand_place(c, o, t, type_bytes(t), place);
}

bool operand_target(struct compiler *c, const struct operand *o, enum type t, uint32_t *place)
{
    if (o->kind == OPERAND_SINK) {
        *place = t == T_PRED ? predicate_new(c) : register_new(c, type_bytes(t));
        return true;
    }
    *place = o->place;
    return o->kind == OPERAND_REGISTER && !o->negated && (o->type == T_PRED) == (t == T_PRED) &&
           type_bytes(o->type) == type_bytes(t);
}

bool operand_any_source(struct compiler *c, const struct operand *o, uint32_t least, uint32_t *place,
                        uint32_t *bytes)
{
    if (o->kind == OPERAND_REGISTER) {
        *place = o->place;
        *bytes = type_bytes(o->type);
        if (*bytes < 2) *bytes = 2;
        return o->type != T_PRED && *bytes >= least && *bytes <= 8 && !o->negated;
    }
    *bytes = o->kind == OPERAND_SPECIAL ? special_bytes(o->special) : least < 2 ? 2 : least;
    if (*bytes < least) *bytes = least;
    return operand_place(c, o,
                         o->literal.floating == 4 ? T_F32
                         : o->literal.floating    ? T_F64
                                                  : T_B64,
                         *bytes, place);
}

bool operand_any_target(struct compiler *c, const struct operand *o, uint32_t least, uint32_t *place,
                        uint32_t *bytes)
{
    if (o->kind == OPERAND_SINK) {
        *bytes = least < 2 ? 2 : least;
        *place = register_new(c, *bytes);
        return true;
    }
    *place = o->place;
    *bytes = type_bytes(o->type);
    if (*bytes < 2) *bytes = 2;
    return o->kind == OPERAND_REGISTER && o->type != T_PRED && *bytes >= least && *bytes <= 8 && !o->negated;
}

bool operand_address(struct compiler *c, const struct operand *o, enum space *space, struct op *to)
{
    if (o->kind != OPERAND_ADDRESS) return false;
    const struct symbol *s = o->symbol;
    to->immediate = o->offset;
    if (o->has_base) {
        to->a = o->place;
        to->width = (uint8_t)type_bytes(o->type);
        return o->type != T_PRED && (to->width == 4 || to->width == 8);
    }
    if (!s) {
        to->flag |= ACCESS_NO_BASE;
        return true;
    }
    if (s->kind != SYMBOL_VARIABLE) return false;
    if (s->space == SPACE_GLOBAL || s->space == SPACE_CONST) {
        to->a = constant_address(c, s->index, false, 0, 8);
        to->width = 8;
        if (*space == SPACE_GENERIC) *space = SPACE_GLOBAL;
        return *space == SPACE_GLOBAL || *space == SPACE_CONST;
    }
    to->flag |= ACCESS_NO_BASE;
    to->immediate += (int64_t)s->offset;
    if (s->space == SPACE_LOCAL) {
        to->flag |= ACCESS_FRAME;
        if (*space != SPACE_LOCAL && *space != SPACE_PARAM && *space != SPACE_GENERIC) return false;
    } else if (*space != s->space && *space != SPACE_GENERIC) {
        return false;
    }
    *space = s->space;
    return true;
}
