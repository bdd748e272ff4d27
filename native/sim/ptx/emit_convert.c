/* Translation of moves, conversions and comparisons. */
#include "sim/ptx/access.h"
#include "sim/ptx/compare.h"
#include "sim/ptx/convert.h"
#include "sim/ptx/convert_fast.h"
#include "sim/ptx/emit.h"
#include "sim/ptx/modifiers.h"
#include "sim/ptx/operand.h"
#include "sim/ptx/storage.h"

#include <string.h>

/* ---- mov ---- */

typedef bool element_fn(struct compiler *c, const struct operand *o, uint32_t bytes, uint32_t *place,
                        uint32_t *register_bytes);

/*
 * Translate a mov between a vector of registers and one register: the elements' places are listed; `whole` is
 * the place of the other.
 */
static enum emitted emit_vector_move(struct compiler *c, const struct instruction *n, const struct operand *v,
                                     enum type t, bool placed, element_fn *element, op_fn *run,
                                     struct op **out)
{
    const struct operand *item = &n->item[v->item];
    uint32_t place[8], whole = type_bytes(t), bytes, width = 0;
    if (!placed) return whole > 8 ? EMIT_REFUSED : EMIT_MISMATCH;
    for (uint32_t k = 0; k < v->items; k++) {
        if (!element(c, &item[k], whole / v->items, &place[k], &bytes) || (width && bytes != width))
            return EMIT_MISMATCH;
        width = bytes;
    }
    uint32_t list = c->function->list_count;
    for (uint32_t k = 0; k < v->items; k++) {
        if (!list_add(c, place[k])) return EMIT_LIMIT_EXCEEDED;
    }
    struct op *o = *out = emit(c, run);
    o->list = list;
    o->list_count = v->items;
    o->width = (uint8_t)whole;
    o->shape = (uint8_t)(whole / v->items);
    o->from = (uint8_t)width;
    return EMIT_OK;
}

static bool vector_divides_register(const struct operand *v, enum type t)
{
    uint32_t whole = type_bytes(t);
    return v->items && v->items <= 8 && t != T_PRED && whole <= 8 && whole % v->items == 0;
}

static enum emitted emit_pack(struct compiler *c, struct instruction *n, enum type t)
{
    struct op *o;
    uint32_t d;
    const struct operand *v = &n->operand[1];
    bool placed = vector_divides_register(v, t) && operand_target(c, &n->operand[0], t, &d);
    enum emitted result = emit_vector_move(c, n, v, t, placed, operand_any_source, op_pack, &o);
    if (result == EMIT_OK) o->d = d;
    return result;
}

static enum emitted emit_unpack(struct compiler *c, struct instruction *n, enum type t)
{
    struct op *o;
    uint32_t a;
    const struct operand *v = &n->operand[0];
    bool placed = vector_divides_register(v, t) && operand_source(c, &n->operand[1], t, &a);
    enum emitted result = emit_vector_move(c, n, v, t, placed, operand_any_target, op_unpack, &o);
    if (result == EMIT_OK) o->a = a;
    return result;
}

static enum emitted do_mov(struct compiler *c, struct instruction *n)
{
    enum type t = last_type(n);
    if (n->operands != 2 || !t) return EMIT_MISMATCH;
    struct operand *source = &n->operand[1];
    if (source->kind == OPERAND_VECTOR) return emit_pack(c, n, t);
    if (n->operand[0].kind == OPERAND_VECTOR) return emit_unpack(c, n, t);
    if (type_bytes(t) > 8) return EMIT_REFUSED;
    if (source->kind == OPERAND_NAME && source->symbol == NULL) {
        report_error(c->report, n->line, "Unknown symbol '%.*s'",
                     (int)(source->name.length < 200 ? source->name.length : 200), source->name.at);
        return EMIT_LIMIT_EXCEEDED;
    }
    return emit_alu(c, n);
}

/* ---- cvt ---- */

static char rounding_mode(const struct instruction *n, enum type to, enum type from, bool *whole)
{
    static const struct {
        const char *name;
        char mode;
        bool whole;
    } modes[] = {{"rn", 'n', false}, {"rz", 'z', false},  {"rm", 'm', false},
                 {"rp", 'p', false}, {"rna", 'a', false}, {"rni", 'n', true},
                 {"rzi", 'z', true}, {"rmi", 'm', true},  {"rpi", 'p', true}};
    *whole = false;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (!has_modifier(n, modes[i].name)) continue;
        *whole = modes[i].whole;
        return modes[i].mode;
    }
    return type_kind(from) == 'f' && type_kind(to) != 'f' ? 'z' : 'n';
}

static enum emitted emit_narrow_pair(struct compiler *c, struct instruction *n, enum type to, char mode)
{
    uint32_t d, a, b;
    if (n->operands != 3 || last_type(n) != T_F32) return EMIT_REFUSED;
    if (!operand_source(c, &n->operand[1], T_F32, &a) || !operand_source(c, &n->operand[2], T_F32, &b) ||
        !operand_target(c, &n->operand[0], to, &d))
        return EMIT_MISMATCH;
    struct op *o = emit(c, op_narrow_pair);
    o->d = d;
    o->a = a;
    o->b = b;
    o->type = (uint8_t)to;
    o->immediate = mode;
    o->flag = has_modifier(n, "relu") ? CONVERT_RELU : 0;
    return EMIT_OK;
}

static enum emitted do_cvt(struct compiler *c, struct instruction *n)
{
    enum type type[4], to, from;
    uint32_t types = 0, d, a, wide, narrow;
    bool whole;
    for (uint32_t i = 0; i < n->parts && types < 4; i++) {
        enum type t = type_named(n->part[i].at, n->part[i].length);
        if (t) type[types++] = t;
    }
    if (has_modifier(n, "pack")) return EMIT_REFUSED;
    if (types != 2) return EMIT_REFUSED; /* e4m3x2 and similar */
    to = type[0];
    from = type[1];
    char mode = rounding_mode(n, to, from, &whole);
    if (to == T_F16X2 || to == T_BF16X2) return emit_narrow_pair(c, n, to, mode);
    if (n->operands != 2 || to == T_PRED || from == T_PRED || type_kind(from) == 'h' || type_bytes(to) > 8 ||
        type_bytes(from) > 8)
        return EMIT_MISMATCH;
    if (!operand_any_source(c, &n->operand[1], type_bytes(from), &a, &narrow) ||
        !operand_any_target(c, &n->operand[0], type_bytes(to), &d, &wide))
        return EMIT_MISMATCH;
    uint32_t flag = (has_modifier(n, "sat") ? CONVERT_SATURATE : 0) |
                    (has_modifier(n, "ftz") ? CONVERT_FLUSH : 0) | (whole ? CONVERT_WHOLE : 0) |
                    (has_modifier(n, "relu") ? CONVERT_RELU : 0);
    op_fn *fast = flag || mode != 'n' || narrow != type_bytes(from) || wide != type_bytes(to)
                      ? NULL
                      : convert_fast(to, from);
    struct op *o = emit(c, fast ? fast : op_convert);
    o->d = d;
    o->a = a;
    o->type = (uint8_t)to;
    o->from = (uint8_t)from;
    o->width = (uint8_t)wide;
    o->shape = (uint8_t)narrow;
    o->flag = flag;
    o->immediate = mode;
    return EMIT_OK;
}

/* ---- setp and set ---- */

struct relation {
    compare_fn *run;
    uint32_t flag;
};

static struct relation relation_read(const struct instruction *n, enum type t)
{
    struct relation r = {NULL, COMBINE_NONE};
    for (uint32_t i = 0; i < n->parts; i++) {
        if (!r.run) r.run = compare_named(n->part[i].at, n->part[i].length, t, has_modifier(n, "ftz"));
        if (span_is(n->part[i], "and")) r.flag = COMBINE_AND;
        if (span_is(n->part[i], "or")) r.flag = COMBINE_OR;
        if (span_is(n->part[i], "xor")) r.flag = COMBINE_XOR;
    }
    return r;
}

/* The type of one half. */
static enum type half_type(enum type t)
{
    return t == T_F16X2 ? T_F16 : t == T_BF16X2 ? T_BF16 : t;
}

static enum emitted emit_compare(struct compiler *c, struct instruction *n, enum type result, op_fn *run,
                                 int truth)
{
    enum type t = last_type(n);
    struct relation r = relation_read(n, half_type(t));
    uint32_t a, b, p = 0, d;
    if (!r.run) return EMIT_UNKNOWN;
    if (n->operands != (r.flag ? 4u : 3u)) return EMIT_MISMATCH;
    if (!operand_source(c, &n->operand[1], t, &a) || !operand_source(c, &n->operand[2], t, &b))
        return EMIT_MISMATCH;
    if (r.flag) {
        struct operand with = n->operand[3];
        if (with.negated) r.flag |= COMBINE_NOT;
        with.negated = false;
        if (!operand_source(c, &with, T_PRED, &p)) return EMIT_MISMATCH;
    }
    if (n->operand[0].has_second) r.flag |= COMBINE_SECOND;
    if (!operand_target(c, &n->operand[0], result, &d)) return EMIT_MISMATCH;
    struct op *o = emit(c, run);
    o->d = d;
    o->a = a;
    o->b = b;
    o->c = p;
    o->e = n->operand[0].second;
    o->flag = r.flag;
    o->extra = (const void *)r.run;
    o->immediate = truth;
    return EMIT_OK;
}

static enum emitted do_setp(struct compiler *c, struct instruction *n)
{
    enum type t = last_type(n);
    return emit_compare(c, n, T_PRED, half_type(t) == t ? op_setp : op_setp_pair, 0);
}

static enum emitted do_set(struct compiler *c, struct instruction *n)
{
    enum type first = T_NONE;
    for (uint32_t i = 0; i < n->parts && !first; i++)
        first = type_named(n->part[i].at, n->part[i].length);
    bool pair = half_type(last_type(n)) != last_type(n);
    switch (first) {
    case T_F32:
        return pair ? EMIT_REFUSED : emit_compare(c, n, T_F32, op_set_float, 0);
    case T_U32:
    case T_S32:
        return emit_compare(c, n, T_U32, pair ? op_set_pair : op_set_integer, 0xffff);
    case T_F16:
        return pair ? EMIT_REFUSED : emit_compare(c, n, T_F16, op_set_half, 0x3c00);
    case T_BF16:
        return pair ? EMIT_REFUSED : emit_compare(c, n, T_BF16, op_set_half, 0x3f80);
    case T_U16:
    case T_S16:
        return pair ? EMIT_REFUSED : emit_compare(c, n, T_U16, op_set_half, 0xffff);
    case T_F16X2:
        return pair ? emit_compare(c, n, T_F16X2, op_set_pair, 0x3c00) : EMIT_REFUSED;
    case T_BF16X2:
        return pair ? emit_compare(c, n, T_BF16X2, op_set_pair, 0x3f80) : EMIT_REFUSED;
    default:
        return EMIT_REFUSED;
    }
}

const struct emitter emit_convert[] = {
    {"mov", do_mov}, {"cvt", do_cvt}, {"setp", do_setp}, {"set", do_set}, {0},
};
