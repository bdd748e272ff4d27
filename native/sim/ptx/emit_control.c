/* Translation of branches, calls, ends and barriers. */
#include "sim/ptx/control.h"
#include "sim/ptx/emit.h"
#include "sim/ptx/modifiers.h"
#include "sim/ptx/operand.h"
#include "sim/ptx/scope.h"
#include "sim/ptx/special.h"
#include "sim/ptx/storage.h"
#include "sim/ptx/warp_exchange.h"

#include <string.h>

static enum emitted do_bra(struct compiler *c, struct instruction *n)
{
    const struct operand *to = &n->operand[0];
    if (n->operands != 1 || (to->kind != OPERAND_NAME && to->kind != OPERAND_SYMBOL)) return EMIT_MISMATCH;
    emit(c, op_branch);
    if (c->limit_exceeded) return EMIT_LIMIT_EXCEEDED;
    return scope_refer(c, to->name.at, to->name.length, c->function->op_count - 1, false)
               ? EMIT_OK
               : EMIT_LIMIT_EXCEEDED;
}

static enum emitted do_brx(struct compiler *c, struct instruction *n)
{
    uint32_t a;
    if (n->operands != 2 || !operand_source(c, &n->operand[0], T_U32, &a)) return EMIT_MISMATCH;
    const struct symbol *s = n->operand[1].symbol;
    if (!s || s->kind != SYMBOL_TARGETS) return EMIT_MISMATCH;
    struct op *o = emit(c, op_branch_table);
    o->a = a;
    o->list = s->index;
    o->list_count = s->count;
    return EMIT_OK;
}

/* ---- calls ---- */

/* A parenthesised list of registers, values and parameter variables, as (place, bytes) pairs. */
static bool call_list(struct compiler *c, struct instruction *n, bool results, uint32_t *out, uint32_t *count)
{
    struct text *t = &c->text;
    *count = 0;
    if (!text_take(t, "(")) return false;
    while (!text_is(t, ")")) {
        struct operand o;
        uint32_t place = 0, bytes = 0;
        if (*count == 64 || !operand_read(c, n, &o, true)) return false;
        if (o.kind == OPERAND_SYMBOL && o.symbol->kind == SYMBOL_VARIABLE && o.symbol->space == SPACE_LOCAL &&
            !o.offset)
            place = (uint32_t)o.symbol->offset;
        else if (results ? !operand_any_target(c, &o, 2, &place, &bytes)
                         : !operand_any_source(c, &o, o.kind == OPERAND_REGISTER ? 2 : 8, &place, &bytes))
            return false;
        out[2 * *count] = place;
        out[2 * *count + 1] = bytes;
        ++*count;
        if (!text_take(t, ",")) break;
    }
    return text_take(t, ")");
}

static enum emitted call_op(struct compiler *c, const struct operand *callee, const uint32_t *list,
                            uint32_t results, uint32_t arguments)
{
    const struct routine *f = NULL;
    uint32_t at = c->function->list_count, through = 0;
    if (callee->kind == OPERAND_SYMBOL && callee->symbol->kind == SYMBOL_FUNCTION)
        f = c->program->function[callee->symbol->index];
    else if (callee->kind != OPERAND_REGISTER || !operand_source(c, callee, T_U64, &through))
        return EMIT_MISMATCH;
    for (uint32_t k = 0; k < 2 * (results + arguments); k++) {
        if (!list_add(c, list[k])) return EMIT_LIMIT_EXCEEDED;
    }
    op_fn *run = f && f->builtin && !f->defined ? f->builtin : f ? op_call : op_call_through;
    struct op *o = emit(c, run);
    o->a = through;
    o->extra = f;
    o->list = at;
    o->list_count = results << 16 | arguments;
    return EMIT_OK;
}

static enum emitted do_call(struct compiler *c, struct instruction *n)
{
    struct text *t = &c->text;
    uint32_t list[256], results = 0, arguments = 0;
    struct operand callee;
    if (text_is(t, "(") && (!call_list(c, n, true, list, &results) || !text_take(t, ",")))
        return EMIT_MISMATCH;
    if (!operand_read(c, n, &callee, true)) return EMIT_MISMATCH;
    if (callee.kind == OPERAND_NAME) {
        report_error(c->report, n->line, "Unknown symbol '%.*s'",
                     (int)(callee.name.length < 200 ? callee.name.length : 200), callee.name.at);
        return EMIT_LIMIT_EXCEEDED;
    }
    if (text_take(t, ",") && text_is(t, "(") && !call_list(c, n, false, list + 2 * results, &arguments))
        return EMIT_MISMATCH;
    return call_op(c, &callee, list, results, arguments);
}

static enum emitted emit_without_operands(struct compiler *c, const struct instruction *n, op_fn *run)
{
    if (n->operands) return EMIT_MISMATCH;
    emit(c, run);
    return EMIT_OK;
}

static enum emitted do_ret(struct compiler *c, struct instruction *n)
{
    return emit_without_operands(c, n, op_return);
}

static enum emitted do_exit(struct compiler *c, struct instruction *n)
{
    return emit_without_operands(c, n, op_exit);
}

static enum emitted do_trap(struct compiler *c, struct instruction *n)
{
    return emit_without_operands(c, n, op_trap);
}

static enum emitted do_brkpt(struct compiler *c, struct instruction *n)
{
    return emit_without_operands(c, n, op_break);
}

static enum emitted do_nanosleep(struct compiler *c, struct instruction *n)
{
    (void)n;
    emit(c, op_yield);
    return EMIT_OK;
}

/* ---- barriers ---- */

static enum emitted warp_barrier(struct compiler *c, const struct instruction *n)
{
    uint32_t members;
    if (n->operands != 1 || !operand_source(c, &n->operand[0], T_U32, &members)) return EMIT_MISMATCH;
    emit(c, op_warp_sync)->e = members;
    return EMIT_OK;
}

static enum emitted barrier(struct compiler *c, const struct instruction *n, uint32_t flag)
{
    bool reduces = flag & (BARRIER_POPC | BARRIER_AND | BARRIER_OR);
    uint32_t k = reduces ? 1 : 0, id = constant_place(c, 0, 4), count = 0, d = 0, p = 0, counted;
    enum type t = flag & BARRIER_POPC ? T_U32 : T_PRED;
    if (reduces && (n->operands < 3 || !operand_target(c, &n->operand[0], t, &d))) return EMIT_MISMATCH;
    if (n->operands > k && !operand_source(c, &n->operand[k], T_U32, &id)) return EMIT_MISMATCH;
    counted = n->operands - k >= (reduces ? 3u : 2u);
    if (counted && !operand_source(c, &n->operand[k + 1], T_U32, &count)) return EMIT_MISMATCH;
    if (reduces) {
        struct operand with = n->operand[n->operands - 1];
        if (with.negated) flag |= BARRIER_NOT;
        with.negated = false;
        if (!operand_source(c, &with, T_PRED, &p)) return EMIT_MISMATCH;
    }
    struct op *o = emit(c, op_barrier);
    o->flag = flag;
    o->a = id;
    o->b = count;
    o->c = p;
    o->d = d;
    o->list_count = counted;
    return EMIT_OK;
}

static enum emitted do_bar(struct compiler *c, struct instruction *n)
{
    if (has_modifier(n, "warp")) return warp_barrier(c, n);
    if (has_modifier(n, "cluster")) { /* a cluster is one block: waiting for it is waiting for the block */
        if (has_modifier(n, "arrive")) {
            emit(c, op_nothing);
            return EMIT_OK;
        }
        return barrier(c, &(struct instruction){.line = n->line}, 0);
    }
    uint32_t flag = has_modifier(n, "arrive") ? BARRIER_ARRIVE : 0;
    if (has_modifier(n, "red"))
        flag = has_modifier(n, "popc") ? BARRIER_POPC : has_modifier(n, "and") ? BARRIER_AND : BARRIER_OR;
    else if (!has_modifier(n, "sync") && !flag)
        return EMIT_UNKNOWN;
    return barrier(c, n, flag);
}

const struct emitter emit_control[] = {
    {"bra", do_bra},
    {"brx", do_brx},
    {"call", do_call},
    {"ret", do_ret},
    {"exit", do_exit},
    {"trap", do_trap},
    {"brkpt", do_brkpt},
    {"nanosleep", do_nanosleep},
    {"bar", do_bar},
    {"barrier", do_bar},
    {0},
};
