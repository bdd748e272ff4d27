/* Look-up of an instruction's modifiers. */
#include "sim/ptx/modifiers.h"

#include "sim/ptx/operand.h"

#include <string.h>

bool has_modifier(const struct instruction *n, const char *part)
{
    for (uint32_t i = 0; i < n->parts; i++) {
        if (span_is(n->part[i], part)) return true;
    }
    return false;
}

enum type last_type(const struct instruction *n)
{
    for (uint32_t i = n->parts; i > 0; i--) {
        enum type t = type_named(n->part[i - 1].at, n->part[i - 1].length);
        if (t) return t;
    }
    return T_NONE;
}

static bool starts_with(struct span_text s, const char *text)
{
    return s.length >= strlen(text) && memcmp(s.at, text, strlen(text)) == 0;
}

enum space space_modifier(const struct instruction *n)
{
    for (uint32_t i = 0; i < n->parts; i++) {
        if (span_is(n->part[i], "global")) return SPACE_GLOBAL;
        if (starts_with(n->part[i], "shared")) return SPACE_SHARED;
        if (span_is(n->part[i], "local")) return SPACE_LOCAL;
        if (starts_with(n->part[i], "param")) return SPACE_PARAM;
        if (span_is(n->part[i], "const")) return SPACE_CONST;
    }
    return SPACE_GENERIC;
}
