/* The table of types. */
#include "sim/ptx/type.h"

#include <string.h>

static const struct {
    const char *name;
    char kind;
    uint8_t bytes;
} table[T_COUNT] = {
#define T(id, text, letter, size) [T_##id] = {text, letter, size},
    PTX_TYPES(T)
#undef T
};

enum type type_named(const char *name, size_t length)
{
    for (int t = 1; t < T_COUNT; t++) {
        if (strlen(table[t].name) == length && memcmp(table[t].name, name, length) == 0) return (enum type)t;
    }
    return T_NONE;
}

uint32_t type_bytes(enum type t)
{
    return table[t].bytes;
}

char type_kind(enum type t)
{
    return table[t].kind;
}
