/* Translation of instructions that access memory or compute addresses. */
#include "sim/ptx/access.h"
#include "sim/ptx/atomic.h"
#include "sim/ptx/emit.h"
#include "sim/ptx/modifiers.h"
#include "sim/ptx/operand.h"
#include "sim/ptx/special.h"
#include "sim/ptx/storage.h"

#include <string.h>

static bool has_vector_modifier(const struct instruction *n)
{
    return has_modifier(n, "v2") || has_modifier(n, "v4") || has_modifier(n, "v8");
}

static uint32_t vector_size(const struct instruction *n)
{
    return has_modifier(n, "v2") ? 2 : has_modifier(n, "v4") ? 4 : has_modifier(n, "v8") ? 8 : 1;
}

/* Append the registers of a vector operand, or the single one, to the list; all must have the same width. */
static enum emitted list_append_registers(struct compiler *c, struct instruction *n, const struct operand *o,
                                          enum type t, bool target, struct op *to)
{
    uint32_t count = vector_size(n), width = 0, place[8] = {0}, bytes;
    const struct operand *item = o;
    if (has_vector_modifier(n)) {
        if (o->kind != OPERAND_VECTOR || o->items != count) return EMIT_MISMATCH;
        item = &n->item[o->item];
    }
    /* A discarded element is as wide as the others. */
    uint32_t least = type_bytes(t);
    for (uint32_t k = 0; k < count; k++) {
        if (item[k].kind == OPERAND_REGISTER && type_bytes(item[k].type) > least)
            least = type_bytes(item[k].type);
    }
    if (least > 8) return EMIT_REFUSED;
    for (uint32_t k = 0; k < count; k++) {
        bool ok =
            target ? operand_any_target(c, &item[k], item[k].kind == OPERAND_SINK ? least : type_bytes(t),
                                        &place[k], &bytes)
                   : operand_any_source(c, &item[k], item[k].kind == OPERAND_REGISTER ? type_bytes(t) : least,
                                        &place[k], &bytes);
        if (!ok || (width && bytes != width)) return EMIT_MISMATCH;
        width = bytes;
    }
    to->list = c->function->list_count;
    to->list_count = count;
    to->shape = (uint8_t)width;
    for (uint32_t k = 0; k < count; k++) {
        if (!list_add(c, place[k])) return EMIT_LIMIT_EXCEEDED;
    }
    return EMIT_OK;
}

static enum emitted emit_access(struct compiler *c, struct instruction *n, bool store)
{
    enum type t = last_type(n);
    enum space space = space_modifier(n);
    struct op draft = {0};
    const struct operand *address = &n->operand[store ? 0 : 1], *value = &n->operand[store ? 1 : 0];
    if (n->operands < 2 || !t || t == T_PRED) return EMIT_MISMATCH;
    if (type_bytes(t) > 8) return EMIT_REFUSED;
    if (!operand_address(c, address, &space, &draft)) return EMIT_MISMATCH;
    enum emitted result = list_append_registers(c, n, value, t, !store, &draft);
    if (result != EMIT_OK) return result;
    struct op *o = emit(c, store ? op_store : op_load);
    draft.run = o->run;
    draft.guard = o->guard;
    draft.line = o->line;
    draft.type = (uint8_t)t;
    draft.from = (uint8_t)space;
    *o = draft;
    return EMIT_OK;
}

static enum emitted do_ld(struct compiler *c, struct instruction *n)
{
    return emit_access(c, n, false);
}

static enum emitted do_st(struct compiler *c, struct instruction *n)
{
    if (span_is(n->part[0], "bulk") || has_modifier(n, "async")) return EMIT_REFUSED;
    return emit_access(c, n, true);
}

static int atomic_operation(const struct instruction *n)
{
    for (uint32_t i = 0; i < n->parts; i++) {
        int what = atomic_named(n->part[i].at, n->part[i].length);
        if (what >= 0) return what;
    }
    return -1;
}

/* Translate one element of the instruction's operands; the elements of a vector are atomic each. */
static enum emitted emit_atomic_element(struct compiler *c, const struct instruction *n, struct op draft,
                                        const struct operand *target, const struct operand *source, int what)
{
    enum type t = last_type(n);
    uint32_t b, third, d, first = target ? 1 : 0;
    if (!operand_source(c, source, t, &b)) return EMIT_MISMATCH;
    third = b;
    if (what == atomic_named("cas", 3) &&
        (n->operands < first + 3 || !operand_source(c, &n->operand[first + 2], t, &third)))
        return EMIT_MISMATCH;
    if (!target)
        d = register_new(c, type_bytes(t));
    else if (!operand_target(c, target, t, &d))
        return EMIT_MISMATCH;
    struct op *o = emit(c, op_atomic);
    draft.run = o->run;
    draft.guard = o->guard;
    draft.line = o->line;
    draft.flag |= (uint32_t)what << 8;
    draft.type = (uint8_t)t;
    draft.shape = (uint8_t)type_bytes(t);
    draft.b = b;
    draft.c = third;
    draft.d = d;
    *o = draft;
    return EMIT_OK;
}

static enum emitted emit_atomic(struct compiler *c, struct instruction *n, bool reduces)
{
    enum type t = last_type(n);
    enum space space = space_modifier(n);
    int what = atomic_operation(n);
    struct op draft = {0};
    uint32_t first = reduces ? 0 : 1, count = vector_size(n);
    const struct operand *d = reduces ? NULL : &n->operand[0], *b = &n->operand[first + 1];
    if (has_modifier(n, "async")) return EMIT_REFUSED;
    if (!t || t == T_PRED || what < 0 || n->operands < first + 2) return EMIT_MISMATCH;
    if (type_bytes(t) > 8 || type_bytes(t) < 2) return EMIT_REFUSED;
    if (!operand_address(c, &n->operand[first], &space, &draft)) return EMIT_MISMATCH;
    draft.from = (uint8_t)space;
    if (!has_vector_modifier(n)) return emit_atomic_element(c, n, draft, d, b, what);
    if (b->kind != OPERAND_VECTOR || b->items != count || what == atomic_named("cas", 3) ||
        (d && (d->kind != OPERAND_VECTOR || d->items != count)))
        return EMIT_MISMATCH;
    for (uint32_t k = 0; k < count; k++) {
        enum emitted result =
            emit_atomic_element(c, n, draft, d ? &n->item[d->item + k] : NULL, &n->item[b->item + k], what);
        if (result != EMIT_OK) return result;
        draft.immediate += type_bytes(t);
    }
    return EMIT_OK;
}

static enum emitted do_atom(struct compiler *c, struct instruction *n)
{
    return emit_atomic(c, n, false);
}

static enum emitted do_red(struct compiler *c, struct instruction *n)
{
    return emit_atomic(c, n, true);
}

static enum emitted do_cvta(struct compiler *c, struct instruction *n)
{
    enum type t = last_type(n);
    bool to = has_modifier(n, "to");
    uint32_t a, d;
    static const int64_t window[] = {[SPACE_SHARED] = (int64_t)WINDOW_SHARED,
                                     [SPACE_LOCAL] = (int64_t)WINDOW_LOCAL,
                                     [SPACE_PARAM] = (int64_t)WINDOW_PARAM,
                                     [SPACE_GLOBAL] = 0,
                                     [SPACE_CONST] = 0};
    enum space space = space_modifier(n);
    if (n->operands != 2 || !strchr("bu", type_kind(t)) || type_bytes(t) < 4 || type_bytes(t) > 8 ||
        space == SPACE_GENERIC)
        return EMIT_MISMATCH;
    int64_t plus = window[space];
    /* A parameter of a function, and only that, is in local memory. */
    if (space == SPACE_PARAM && !c->function->entry) plus = window[SPACE_LOCAL];
    if (!operand_source(c, &n->operand[1], t, &a) || !operand_target(c, &n->operand[0], t, &d))
        return EMIT_MISMATCH;
    struct op *o = emit(c, to ? op_window_sub : op_window_add);
    o->d = d;
    o->a = a;
    o->width = (uint8_t)type_bytes(t);
    o->immediate = plus;
    return EMIT_OK;
}

static enum emitted do_isspacep(struct compiler *c, struct instruction *n)
{
    uint32_t a, d;
    enum space space = space_modifier(n);
    if (n->operands != 2 || space == SPACE_GENERIC) return EMIT_MISMATCH;
    if (!operand_source(c, &n->operand[1], T_U64, &a) || !operand_target(c, &n->operand[0], T_PRED, &d))
        return EMIT_MISMATCH;
    struct op *o = emit(c, op_is_space);
    o->d = d;
    o->a = a;
    o->flag = space;
    return EMIT_OK;
}

/* Instructions without an effect in the simulation. */
static enum emitted do_nothing(struct compiler *c, struct instruction *n)
{
    (void)n;
    emit(c, op_nothing);
    return EMIT_OK;
}

static enum emitted emit_copy_async(struct compiler *c, struct instruction *n)
{
    struct op to = {0}, from = {0};
    enum space shared = SPACE_SHARED, global = SPACE_GLOBAL;
    const struct operand *size = &n->operand[2];
    uint32_t there = 0;
    if (n->operands < 3 || size->kind != OPERAND_LITERAL) return EMIT_MISMATCH;
    if (size->literal.bits != 4 && size->literal.bits != 8 && size->literal.bits != 16) return EMIT_MISMATCH;
    if (!operand_address(c, &n->operand[0], &shared, &to) ||
        !operand_address(c, &n->operand[1], &global, &from))
        return EMIT_MISMATCH;
    bool partly = n->operands > 3 && !has_modifier(n, "L2::cache_hint");
    if (partly && n->operand[3].type == T_PRED) return EMIT_REFUSED;
    if (partly && !operand_source(c, &n->operand[3], T_U32, &there)) return EMIT_MISMATCH;
    if (from.flag) return EMIT_REFUSED;
    struct op *o = emit(c, op_copy_async);
    o->a = to.a;
    o->width = to.width;
    o->immediate = to.immediate;
    o->flag = to.flag;
    o->b = from.a;
    o->shape = from.width;
    o->second = from.immediate;
    o->type = (uint8_t)size->literal.bits;
    o->c = there;
    o->list_count = partly;
    return EMIT_OK;
}

static enum emitted do_cp(struct compiler *c, struct instruction *n)
{
    if (!n->parts || !span_is(n->part[0], "async")) return EMIT_UNKNOWN;
    if (has_modifier(n, "bulk") || has_modifier(n, "mbarrier") || has_modifier(n, "tensor"))
        return EMIT_REFUSED;
    if (has_modifier(n, "commit_group") || has_modifier(n, "wait_group") || has_modifier(n, "wait_all"))
        return do_nothing(c, n);
    return emit_copy_async(c, n);
}

static enum emitted do_createpolicy(struct compiler *c, struct instruction *n)
{
    uint32_t d;
    if (!n->operands || !operand_target(c, &n->operand[0], T_B64, &d)) return EMIT_MISMATCH;
    struct op *o = emit(c, op_frame_address);
    o->d = d;
    o->width = 8;
    return EMIT_OK;
}

const struct emitter emit_memory[] = {
    {"ld", do_ld},
    {"ldu", do_ld},
    {"st", do_st},
    {"atom", do_atom},
    {"red", do_red},
    {"cvta", do_cvta},
    {"isspacep", do_isspacep},
    {"cp", do_cp},
    {"createpolicy", do_createpolicy},
    {"prefetch", do_nothing},
    {"prefetchu", do_nothing},
    {"discard", do_nothing},
    {"applypriority", do_nothing},
    {"membar", do_nothing},
    {"fence", do_nothing},
    {"pmevent", do_nothing},
    {"griddepcontrol", do_nothing},
    {0},
};
