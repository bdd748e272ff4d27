/* Translation of instructions of a whole warp. */
#include "sim/ptx/emit.h"
#include "sim/ptx/modifiers.h"
#include "sim/ptx/operand.h"
#include "sim/ptx/storage.h"
#include "sim/ptx/warp_exchange.h"

#include <string.h>

#define ALL_LANES(c) constant_place(c, UINT32_MAX, 4)

static enum emitted do_shfl(struct compiler *c, struct instruction *n)
{
    static const struct {
        const char *name;
        uint32_t mode;
    } modes[] = {
        {"up", SHUFFLE_UP}, {"down", SHUFFLE_DOWN}, {"bfly", SHUFFLE_BUTTERFLY}, {"idx", SHUFFLE_INDEX}};
    uint32_t a, b, clamp, d, members = ALL_LANES(c), mode = UINT32_MAX;
    bool sync = has_modifier(n, "sync");
    for (size_t i = 0; i < 4; i++) {
        if (has_modifier(n, modes[i].name)) mode = modes[i].mode;
    }
    if (mode == UINT32_MAX || n->operands != (sync ? 5u : 4u)) return EMIT_MISMATCH;
    if (!operand_source(c, &n->operand[1], T_B32, &a) || !operand_source(c, &n->operand[2], T_B32, &b) ||
        !operand_source(c, &n->operand[3], T_B32, &clamp) ||
        (sync && !operand_source(c, &n->operand[4], T_B32, &members)) ||
        !operand_target(c, &n->operand[0], T_B32, &d))
        return EMIT_MISMATCH;
    struct op *o = emit(c, op_shuffle);
    o->d = d;
    o->a = a;
    o->b = b;
    o->c = clamp;
    o->e = members;
    o->flag = mode;
    o->list_count = n->operand[0].has_second;
    o->second_place = n->operand[0].second;
    return EMIT_OK;
}

static enum emitted do_vote(struct compiler *c, struct instruction *n)
{
    bool sync = has_modifier(n, "sync"), ballot = has_modifier(n, "ballot");
    uint32_t a, d, members = ALL_LANES(c);
    if (n->operands != (sync ? 3u : 2u)) return EMIT_MISMATCH;
    struct operand p = n->operand[1];
    bool inverted = p.negated;
    p.negated = false;
    if (!operand_source(c, &p, T_PRED, &a) || (sync && !operand_source(c, &n->operand[2], T_B32, &members)) ||
        !operand_target(c, &n->operand[0], ballot ? T_B32 : T_PRED, &d))
        return EMIT_MISMATCH;
    struct op *o = emit(c, op_vote);
    o->d = d;
    o->a = a;
    o->e = members;
    o->second = inverted;
    o->flag = ballot                   ? VOTE_BALLOT
              : has_modifier(n, "all") ? VOTE_ALL
              : has_modifier(n, "any") ? VOTE_ANY
                                       : VOTE_UNI;
    return EMIT_OK;
}

static enum emitted do_match(struct compiler *c, struct instruction *n)
{
    enum type t = last_type(n);
    uint32_t a, d, members;
    if (t != T_B32 && t != T_B64) return EMIT_MISMATCH;
    if (n->operands != 3 || !operand_source(c, &n->operand[1], t, &a) ||
        !operand_source(c, &n->operand[2], T_B32, &members) || !operand_target(c, &n->operand[0], T_B32, &d))
        return EMIT_MISMATCH;
    struct op *o = emit(c, op_match);
    o->d = d;
    o->a = a;
    o->e = members;
    o->shape = (uint8_t)type_bytes(t);
    o->flag = has_modifier(n, "all");
    o->list_count = n->operand[0].has_second;
    o->second_place = n->operand[0].second;
    return EMIT_OK;
}

static enum emitted do_activemask(struct compiler *c, struct instruction *n)
{
    uint32_t d;
    if (n->operands != 1 || !operand_target(c, &n->operand[0], T_B32, &d)) return EMIT_MISMATCH;
    emit(c, op_active)->d = d;
    return EMIT_OK;
}

static enum emitted do_redux(struct compiler *c, struct instruction *n)
{
    static const char *const names[] = {"add", "min", "max", "and", "or", "xor"};
    uint32_t a, d, members, what = UINT32_MAX;
    enum type t = last_type(n);
    for (uint32_t i = 0; i < 6; i++) {
        if (has_modifier(n, names[i])) what = i;
    }
    if (t == T_F32) return EMIT_REFUSED;
    if (what == UINT32_MAX || n->operands != 3 || !operand_source(c, &n->operand[1], T_B32, &a) ||
        !operand_source(c, &n->operand[2], T_B32, &members) || !operand_target(c, &n->operand[0], T_B32, &d))
        return EMIT_MISMATCH;
    struct op *o = emit(c, op_reduce);
    o->d = d;
    o->a = a;
    o->e = members;
    o->flag = what;
    o->type = (uint8_t)t;
    return EMIT_OK;
}

static enum emitted do_elect(struct compiler *c, struct instruction *n)
{
    uint32_t d, members;
    if (n->operands != 2 || !n->operand[0].has_second ||
        !operand_source(c, &n->operand[1], T_B32, &members) || !operand_target(c, &n->operand[0], T_B32, &d))
        return EMIT_MISMATCH;
    struct op *o = emit(c, op_elect);
    o->d = d;
    o->e = members;
    o->second_place = n->operand[0].second;
    return EMIT_OK;
}

const struct emitter emit_warp[] = {
    {"shfl", do_shfl},
    {"vote", do_vote},
    {"match", do_match},
    {"activemask", do_activemask},
    {"redux", do_redux},
    {"elect", do_elect},
    {0},
};
