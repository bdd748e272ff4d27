/* Translation of matrix products and of the loads of their operands from shared memory. */
#include "sim/ptx/emit.h"
#include "sim/ptx/matrix.h"
#include "sim/ptx/modifiers.h"
#include "sim/ptx/operand.h"
#include "sim/ptx/storage.h"

/* Append the registers of a vector, all of 32 bits, to the list. */
static enum emitted list_append_vector(struct compiler *c, const struct instruction *n, uint32_t k,
                                       uint32_t count, bool target)
{
    const struct operand *o = &n->operand[k], *item = &n->item[o->item];
    if (o->kind != OPERAND_VECTOR || o->items != count) return EMIT_MISMATCH;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t place;
        bool ok =
            target ? operand_target(c, &item[i], T_B32, &place) : operand_source(c, &item[i], T_B32, &place);
        if (!ok) return EMIT_MISMATCH;
        if (!list_add(c, place)) return EMIT_LIMIT_EXCEEDED;
    }
    return EMIT_OK;
}

struct shape {
    const char *name;
    uint32_t depth; /* k; m is 16 and n is 8 */
};

static uint32_t shape_depth(const struct instruction *n)
{
    static const struct shape shapes[] = {{"m16n8k4", 4}, {"m16n8k8", 8}, {"m16n8k16", 16}, {"m16n8k32", 32}};
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (has_modifier(n, shapes[i].name)) return shapes[i].depth;
    }
    return 0;
}

static enum type modifier_type(const struct instruction *n, uint32_t from_end)
{
    struct span_text p = n->part[n->parts - from_end];
    return type_named(p.at, p.length);
}

/* Return true if the card supports this combination of element and sum. */
static bool product_is_supported(enum type element, enum type sum)
{
    switch (element) {
    case T_F16:
        return sum == T_F16 || sum == T_F32;
    case T_BF16:
    case T_TF32:
        return sum == T_F32;
    case T_S8:
    case T_U8:
        return sum == T_S32;
    default:
        return false;
    }
}

static enum emitted do_mma(struct compiler *c, struct instruction *n)
{
    uint32_t depth = shape_depth(n);
    if (n->parts < 8 || !depth || has_modifier(n, "sp") || !has_modifier(n, "row") || !has_modifier(n, "col"))
        return EMIT_REFUSED;
    enum type d = modifier_type(n, 4), a = modifier_type(n, 3), b = modifier_type(n, 2),
              sum = modifier_type(n, 1);
    bool integers = (a == T_S8 || a == T_U8) && (b == T_S8 || b == T_U8);
    if (d != sum || (a != b && !integers) || !product_is_supported(a, sum)) return EMIT_REFUSED;
    uint32_t each = 4 / (a == T_TF32 ? 4 : type_bytes(a)), of_b = depth / (4 * each);
    if (of_b < 1 || of_b > 2 || depth % (4 * each)) return EMIT_REFUSED;
    uint32_t list = c->function->list_count, of_sum = sum == T_F16 ? 2 : 4;
    const uint32_t counts[] = {of_sum, 2 * of_b, of_b, of_sum};
    if (n->operands != 4) return EMIT_MISMATCH;
    for (uint32_t k = 0; k < 4; k++) {
        enum emitted result = list_append_vector(c, n, k, counts[k], k == 0);
        if (result != EMIT_OK) return result;
    }
    struct op *o = emit(c, op_mma);
    o->list = list;
    o->list_count = of_b;
    o->type = (uint8_t)a;
    o->from = (uint8_t)b;
    o->shape = (uint8_t)sum;
    o->flag = has_modifier(n, "satfinite");
    return EMIT_OK;
}

static enum emitted do_ldmatrix(struct compiler *c, struct instruction *n)
{
    uint32_t count = has_modifier(n, "x1") ? 1 : has_modifier(n, "x2") ? 2 : has_modifier(n, "x4") ? 4 : 0;
    enum space space = space_modifier(n);
    struct op draft = {0};
    if (!count || !has_modifier(n, "m8n8") || last_type(n) != T_B16) return EMIT_REFUSED;
    if (n->operands != 2 || !operand_address(c, &n->operand[1], &space, &draft)) return EMIT_MISMATCH;
    if (space != SPACE_SHARED && space != SPACE_GENERIC) return EMIT_MISMATCH;
    uint32_t list = c->function->list_count;
    enum emitted result = list_append_vector(c, n, 0, count, true);
    if (result != EMIT_OK) return result;
    struct op *o = emit(c, op_load_matrix);
    draft.run = o->run;
    draft.guard = o->guard;
    draft.line = o->line;
    draft.from = (uint8_t)space;
    draft.list = list;
    draft.list_count = count;
    draft.second = has_modifier(n, "trans");
    *o = draft;
    return EMIT_OK;
}

const struct emitter emit_matrix[] = {{"mma", do_mma}, {"ldmatrix", do_ldmatrix}, {0}};
