/*
 * State shared by the parts of the compiler, which makes one pass over the text, from declarations to
 * operations.
 */
#ifndef CALABASH_SIM_PTX_COMPILER_H
#define CALABASH_SIM_PTX_COMPILER_H

#include "sim/ptx/program.h"
#include "sim/ptx/scanner.h"

#define PARTS_MAX      20
#define OPERANDS_MAX   12
#define ITEMS_MAX      64
#define SHARED_MODULE  (1u << 20) /* offset of a module's shared variables; an entry's own begin at 0 */
#define SHARED_DYNAMIC (2u << 20)
#define DEPTH_SCOPES   64u

enum symbol_kind {
    SYMBOL_VARIABLE,
    SYMBOL_FUNCTION,
    SYMBOL_REGISTER,
    SYMBOL_LABEL,
    SYMBOL_TARGETS,
    SYMBOL_OTHER
};

struct symbol {
    const char *name; /* within the text */
    uint32_t length, hash;
    enum symbol_kind kind;
    uint32_t scope;
    enum space space; /* of a variable */
    enum type type;
    uint32_t index; /* of a variable of the program, a function, an operation */
    uint64_t offset, bytes;
    uint32_t count;         /* of a row of registers: %r<count>, else 0 */
    uint32_t *place;        /* of each of them: 0 until it is used, else 1 + its register offset */
    struct symbol *next;    /* of the same bucket */
    struct symbol *earlier; /* of the same scope */
};

struct pending { /* a reference to a label that is not defined yet */
    const char *name;
    uint32_t length, scope, line;
    uint32_t op; /* its target, or with `list` an entry of the list */
    bool list;
};

struct span_text {
    const char *at;
    size_t length;
};

enum operand_kind {
    OPERAND_REGISTER,
    OPERAND_SPECIAL,
    OPERAND_LITERAL,
    OPERAND_SYMBOL,
    OPERAND_ADDRESS,
    OPERAND_VECTOR,
    OPERAND_SINK,
    OPERAND_NAME
};

struct operand {
    enum operand_kind kind;
    bool negated;          /* !p, or -literal already applied */
    struct symbol *symbol; /* OPERAND_SYMBOL; OPERAND_ADDRESS without a register */
    struct span_text name;
    enum type type; /* of a register */
    uint32_t place, special;
    bool has_base; /* an address: `place` and `type` are its register */
    struct literal literal;
    int64_t offset;
    uint32_t item, items; /* a vector */
    bool has_second;      /* d|p */
    uint32_t second;
};

struct instruction {
    uint32_t line;
    struct span_text text, name, part[PARTS_MAX];
    uint32_t parts;
    struct operand operand[OPERANDS_MAX], item[ITEMS_MAX];
    uint32_t operands, items;
};

struct constant_key {
    uint64_t bits;
    uint32_t width, place; /* width 0: free */
};

struct compiler {
    struct text text;
    struct report *report;
    struct program *program;
    struct routine *function;
    struct symbol **bucket, *scope_symbols[DEPTH_SCOPES];
    uint32_t scope;
    struct pending *pending;
    uint32_t pending_count, pending_capacity;
    uint32_t op_capacity, list_capacity, variable_capacity, function_capacity, constant_capacity,
        reloc_capacity;
    uint32_t register_bytes, predicate_left, predicate_at;
    struct constant_key *key;
    uint32_t key_count, key_capacity;
    uint32_t guard;
    uint32_t version, target;
    uint32_t rows;       /* registers that were declared in rows */
    bool limit_exceeded; /* out of memory, or a limit exceeded: nothing more is read */
};

#endif
