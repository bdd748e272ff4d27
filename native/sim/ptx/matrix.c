/*
 * Matrix products: 16 by k and k by 8, distributed over the registers of a warp.
 *
 * Lane l has, in register r of the first factor, row l / 4 + 8 (r mod 2) from column (l mod 4) e + 4 e (r / 2)
 * on, where a register holds e elements; of the second factor column l / 4 from row (l mod 4) e + 4 e r on; and
 * of the sums row l / 4, or 8 more, and two columns from 2 (l mod 4) on. Products are summed in f64 and rounded
 * once.
 */
#include "sim/ptx/matrix.h"

#include "sim/ptx/half_float.h"
#include "sim/ptx/lane_address.h"
#include "sim/ptx/warp.h"

#define ROWS    16
#define COLUMNS 8
#define DEPTH   32

union value {
    f64 real;
    s64 whole;
};

static f32 as_f32(u32 bits)
{
    f32 v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static u32 as_bits(f32 v)
{
    u32 bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* Element `j` of a register. */
static union value register_element(enum type t, u32 word, u32 j)
{
    union value v;
    switch (t) {
    case T_F16:
        v.real = (f64)half_to_float((u16)(word >> (16 * j)));
        break;
    case T_BF16:
        v.real = (f64)bfloat_to_float((u16)(word >> (16 * j)));
        break;
    case T_S8:
        v.whole = (s8)(u8)(word >> (8 * j));
        break;
    case T_U8:
        v.whole = (u8)(word >> (8 * j));
        break;
    default:
        v.real = (f64)as_f32(word & 0xffffe000u); /* the lower bits of a tf32 are ignored */
    }
    return v;
}

static u32 elements_per_register(enum type t)
{
    return t == T_S8 || t == T_U8 ? 4 : t == T_F16 || t == T_BF16 ? 2 : 1;
}

struct factors {
    union value a[ROWS][DEPTH], b[DEPTH][COLUMNS];
    u32 depth;
};

static void factors_fetch(const struct warp *w, const struct op *o, const uint32_t *a, const uint32_t *b,
                          struct factors *f)
{
    u32 each = elements_per_register(o->type);
    f->depth = 4 * each * o->list_count;
    for (u32 r = 0; r < 2 * o->list_count; r++) {
        const u32 *word = in(w, a[r]);
        for (u32 l = 0; l < LANES; l++) {
            for (u32 j = 0; j < each; j++)
                f->a[l / 4 + 8 * (r & 1)][l % 4 * each + j + 4 * each * (r / 2)] =
                    register_element(o->type, word[l], j);
        }
    }
    for (u32 r = 0; r < o->list_count; r++) {
        const u32 *word = in(w, b[r]);
        for (u32 l = 0; l < LANES; l++) {
            for (u32 j = 0; j < each; j++)
                f->b[l % 4 * each + j + 4 * each * r][l / 4] = register_element(o->from, word[l], j);
        }
    }
}

static f64 dot_product_float(const struct factors *f, u32 row, u32 column, f64 sum)
{
    for (u32 k = 0; k < f->depth; k++)
        sum += f->a[row][k].real * f->b[k][column].real;
    return sum;
}

static u32 dot_product_integer(const struct factors *f, u32 row, u32 column, s64 sum, bool saturates)
{
    for (u32 k = 0; k < f->depth; k++)
        sum += f->a[row][k].whole * f->b[k][column].whole;
    if (saturates) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
    return (u32)sum;
}

/* list: registers of the result, of both factors, of the addend; list_count: of the second factor. */
const struct op *op_mma(struct warp *w, const struct op *o, u32 mask)
{
    struct factors f;
    u32 of_sum = o->shape == T_F16 ? 2 : 4, result[4][LANES];
    const uint32_t *d = w->running->frame->function->list + o->list, *a = d + of_sum,
                   *b = a + 2 * o->list_count, *c = b + o->list_count;
    if (mask != FULL) return warp_fault(w, o, RUN_ILLEGAL_INSTRUCTION, "mma without the whole warp", mask);
    factors_fetch(w, o, a, b, &f);
    for (u32 r = 0; r < of_sum; r++) {
        const u32 *word = in(w, c[r]);
        for (u32 l = 0; l < LANES; l++) {
            u32 row = l / 4 + 8 * (of_sum == 4 ? r / 2 : r), column = 2 * (l % 4);
            if (o->shape == T_F32)
                result[r][l] = as_bits((f32)dot_product_float(&f, row, column + r % 2, (f64)as_f32(word[l])));
            else if (o->shape == T_S32)
                result[r][l] = dot_product_integer(&f, row, column + r % 2, (s32)word[l], o->flag);
            else
                result[r][l] = narrow_from_double(dot_product_float(&f, row, column,
                                                                    register_element(T_F16, word[l], 0).real),
                                                  5, 10, 'n') |
                               narrow_from_double(dot_product_float(&f, row, column + 1,
                                                                    register_element(T_F16, word[l], 1).real),
                                                  5, 10, 'n')
                                   << 16;
        }
    }
    for (u32 r = 0; r < of_sum; r++)
        memcpy(out(w, d[r]), result[r], sizeof result[r]);
    return o + 1;
}

/*
 * Lane l addresses row l mod 8 of matrix l / 8, of eight 16-bit numbers; it receives two of row l / 4 of each,
 * or with `second` of column l / 4.
 */
const struct op *op_load_matrix(struct warp *w, const struct op *o, u32 mask)
{
    u64 address[LANES];
    u8 *place[LANES];
    u32 rows = 8 * o->list_count;
    if (mask != FULL)
        return warp_fault(w, o, RUN_ILLEGAL_INSTRUCTION, "ldmatrix without the whole warp", mask);
    lane_addresses(w, o, address);
    if (!lane_places(w, o, rows == LANES ? FULL : (1u << rows) - 1, o->from, address, 16, place)) return NULL;
    const uint32_t *list = w->running->frame->function->list + o->list;
    u32 result[4][LANES];
    for (u32 k = 0; k < o->list_count; k++) {
        for (u32 l = 0; l < LANES; l++) {
            u16 pair[2];
            for (u32 j = 0; j < 2; j++) {
                u32 row = o->second ? l % 4 * 2 + j : l / 4, column = o->second ? l / 4 : l % 4 * 2 + j;
                memcpy(&pair[j], place[8 * k + row] + 2 * column, 2);
            }
            result[k][l] = pair[0] | (u32)pair[1] << 16;
        }
    }
    for (u32 k = 0; k < o->list_count; k++)
        memcpy(out(w, list[k]), result[k], sizeof result[k]);
    return o + 1;
}
