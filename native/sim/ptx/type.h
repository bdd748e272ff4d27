/* The types of PTX. */
#ifndef CALABASH_SIM_PTX_TYPE_H
#define CALABASH_SIM_PTX_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name, letter of its kind (p predicate, b bits, u unsigned, s signed, f floating, h packed halves), bytes */
#define PTX_TYPES(T)            \
    T(PRED, "pred", 'p', 4)     \
    T(B8, "b8", 'b', 1)         \
    T(B16, "b16", 'b', 2)       \
    T(B32, "b32", 'b', 4)       \
    T(B64, "b64", 'b', 8)       \
    T(B128, "b128", 'b', 16)    \
    T(U8, "u8", 'u', 1)         \
    T(U16, "u16", 'u', 2)       \
    T(U32, "u32", 'u', 4)       \
    T(U64, "u64", 'u', 8)       \
    T(S8, "s8", 's', 1)         \
    T(S16, "s16", 's', 2)       \
    T(S32, "s32", 's', 4)       \
    T(S64, "s64", 's', 8)       \
    T(F16, "f16", 'f', 2)       \
    T(F16X2, "f16x2", 'h', 4)   \
    T(BF16, "bf16", 'f', 2)     \
    T(BF16X2, "bf16x2", 'h', 4) \
    T(TF32, "tf32", 'f', 4)     \
    T(F32, "f32", 'f', 4)       \
    T(F64, "f64", 'f', 8)

enum type {
    T_NONE,
#define T(id, name, kind, bytes) T_##id,
    PTX_TYPES(T)
#undef T
        T_COUNT
};

/* Type by its name without the dot; T_NONE: no such type. */
enum type type_named(const char *name, size_t length);
uint32_t type_bytes(enum type t);
char type_kind(enum type t);

static inline bool type_is_signed(enum type t)
{
    return type_kind(t) == 's';
}

#endif
