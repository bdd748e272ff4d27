/* Translation of the instructions listed in alu.h: their modifiers, type and operands. */
#include "sim/ptx/alu.h"
#include "sim/ptx/convert.h"
#include "sim/ptx/emit.h"
#include "sim/ptx/modifiers.h"
#include "sim/ptx/operand.h"
#include "sim/ptx/storage.h"

#include <string.h>

struct choice {
    char name[64];
    enum type type;
    char rounding; /* 'n' unless another one is given */
    bool flush, saturate;
};

static bool name_append(struct choice *c, struct span_text part)
{
    size_t at = strlen(c->name);
    if (at + part.length + 2 > sizeof c->name) return false;
    if (at) c->name[at++] = '.';
    memcpy(c->name + at, part.at, part.length);
    c->name[at + part.length] = 0;
    return true;
}

static bool modifiers_read(const struct instruction *n, struct choice *c)
{
    bool selects = span_is(n->name, "slct"), real;
    c->rounding = 'n';
    c->type = last_type(n);
    if (selects && n->parts) {
        enum type first = type_named(n->part[0].at, n->part[0].length);
        if (n->parts > 1 && first == T_NONE) first = type_named(n->part[1].at, n->part[1].length);
        real = c->type == T_F32;
        c->type = first;
        memcpy(c->name, real ? "slct.f32" : "slct.s32", 9);
        return true;
    }
    real = type_kind(c->type) == 'f' || type_kind(c->type) == 'h';
    if (!name_append(c, n->name)) return false;
    for (uint32_t i = 0; i < n->parts; i++) {
        struct span_text p = n->part[i];
        bool last = i + 1 == n->parts;
        if (last && type_named(p.at, p.length)) continue;
        if (span_is(p, "ftz"))
            c->flush = true;
        else if (span_is(p, "sat") && real)
            c->saturate = true;
        else if (real && (span_is(p, "rn") || span_is(p, "rz") || span_is(p, "rm") || span_is(p, "rp")))
            c->rounding = p.at[1];
        else if (real && span_is(p, "full"))
            continue;
        else if (span_is(p, "approx") && c->type != T_F64)
            continue;
        else if (!name_append(c, p))
            return false;
    }
    return true;
}

static const struct alu *alu_find(const struct choice *c)
{
    static const struct alu *const tables[] = {alu_integer, alu_float, alu_logic, alu_bits,
                                               alu_half,    alu_carry, alu_video};
    for (size_t k = 0; k < sizeof tables / sizeof tables[0]; k++) {
        for (const struct alu *a = tables[k]; a->name; a++) {
            if (a->run[c->type] && strcmp(a->name, c->name) == 0) return a;
        }
    }
    return NULL;
}

static enum type operand_type(char letter, enum type t)
{
    switch (letter) {
    case 'w':
        return type_bytes(t) == 2 ? T_U32 : T_U64;
    case 'u':
        return T_U32;
    case 'p':
        return T_PRED;
    default:
        return t;
    }
}

enum emitted emit_alu(struct compiler *c, struct instruction *n)
{
    struct choice choice = {.name = ""};
    if (!modifiers_read(n, &choice) || !choice.type) return EMIT_UNKNOWN;
    const struct alu *a = alu_find(&choice);
    if (!a) return EMIT_UNKNOWN;
    uint32_t place[6] = {0}, sources = (uint32_t)strlen(a->shape) - 1;
    int64_t immediate = 0;
    if (n->operands < sources + 1) return EMIT_MISMATCH;
    if (n->operands > sources + 1) return EMIT_MISMATCH;
    for (uint32_t k = 1; k <= sources; k++) {
        const struct operand *o = &n->operand[k];
        if (a->shape[k] == 'i') {
            if (o->kind != OPERAND_LITERAL || o->literal.floating) return EMIT_MISMATCH;
            immediate = (int64_t)o->literal.bits;
        } else if (!operand_source(c, o, operand_type(a->shape[k], choice.type), &place[k])) {
            return EMIT_MISMATCH;
        }
    }
    if (!operand_target(c, &n->operand[0], operand_type(a->shape[0], choice.type), &place[0]))
        return EMIT_MISMATCH;
    if (choice.rounding != 'n') emit(c, op_round)->immediate = choice.rounding;
    struct op *o = emit(c, choice.flush && a->flush && a->flush[choice.type] ? a->flush[choice.type]
                                                                             : a->run[choice.type]);
    o->d = place[0];
    o->a = place[1];
    o->b = sources > 1 ? place[2] : place[1];
    o->c = sources > 2 && a->shape[3] != 'i' ? place[3] : place[1];
    o->e = sources > 3 ? place[4] : 0;
    o->immediate = immediate;
    o->type = (uint8_t)choice.type;
    if (choice.saturate) {
        memcpy(choice.name, "saturate", 9);
        a = alu_find(&choice);
        if (!a) return EMIT_UNKNOWN;
        o = emit(c, a->run[choice.type]);
        o->d = o->a = o->b = o->c = place[0];
    }
    return EMIT_OK;
}
