/* Compilation of function bodies: declarations, labels, instructions. */
#include "sim/ptx/body.h"

#include "sim/ptx/declare.h"
#include "sim/ptx/emit.h"
#include "sim/ptx/operand.h"
#include "sim/ptx/scope.h"
#include "sim/ptx/storage.h"

#include <stdio.h>
#include <string.h>

#define SHOWN(n) ((int)((n) < 200 ? (n) : 200))

void skip_statement(struct compiler *c)
{
    struct text *t = &c->text;
    for (uint32_t depth = 0; t->kind != TOKEN_END && !text_is(t, ";"); text_next(t)) {
        if (text_is(t, "{")) depth++;
        if (text_is(t, "}") && depth-- == 0) return;
    }
    text_take(t, ";");
}

static void instruction_refuse(struct compiler *c, const struct instruction *n)
{
    struct routine *f = c->function;
    report_note(c->report, n->line,
                "Instruction '%.*s' is not known to the simulation: '%.200s' cannot be launched",
                SHOWN(n->text.length), n->text.at, f->name);
    if (f->refused) return;
    f->refused = strndup(n->text.at, (size_t)SHOWN(n->text.length));
    f->refused_line = n->line;
}

/* Split an instruction such as "ld.global.v4.f32" into its modifiers. */
static bool instruction_split(struct instruction *n)
{
    const char *at = n->text.at, *end = at + n->text.length;
    const char *dot = memchr(at, '.', (size_t)(end - at));
    n->name = (struct span_text){at, (size_t)((dot ? dot : end) - at)};
    while (dot && n->parts < PARTS_MAX) {
        at = dot + 1;
        dot = memchr(at, '.', (size_t)(end - at));
        n->part[n->parts++] = (struct span_text){at, (size_t)((dot ? dot : end) - at)};
    }
    return !dot;
}

static emit_fn *emitter_of(const struct instruction *n)
{
    static const struct emitter *const tables[] = {emit_memory, emit_control, emit_convert, emit_warp,
                                                   emit_matrix};
    for (size_t k = 0; k < sizeof tables / sizeof tables[0]; k++) {
        for (const struct emitter *e = tables[k]; e->name; e++) {
            if (span_is(n->name, e->name)) return e->run;
        }
    }
    return emit_alu;
}

/* Return true for PTX instructions that the simulated card lacks. */
static bool is_unsupported_instruction(struct span_text name)
{
    static const char *const names[] = {"tex",
                                        "tld4",
                                        "txq",
                                        "suld",
                                        "sust",
                                        "sured",
                                        "suq",
                                        "istypep",
                                        "wmma",
                                        "wgmma",
                                        "tcgen05",
                                        "mbarrier",
                                        "setmaxnreg",
                                        "stmatrix",
                                        "movmatrix",
                                        "multimem",
                                        "clusterlaunchcontrol",
                                        "tensormap",
                                        "mapa",
                                        "getctarank",
                                        "vadd",
                                        "vsub",
                                        "vabsdiff",
                                        "vmin",
                                        "vmax",
                                        "vshl",
                                        "vshr",
                                        "vmad",
                                        "vset",
                                        "vadd2",
                                        "vsub2",
                                        "vavrg2",
                                        "vabsdiff2",
                                        "vmin2",
                                        "vmax2",
                                        "vset2",
                                        "vadd4",
                                        "vsub4",
                                        "vavrg4",
                                        "vabsdiff4",
                                        "vmin4",
                                        "vmax4",
                                        "vset4",
                                        "alloca",
                                        "stackrestore",
                                        "stacksave",
                                        "cp",
                                        "mma",
                                        "ldmatrix",
                                        "red",
                                        "atom",
                                        "cvt",
                                        "ld",
                                        "st",
                                        "mov",
                                        "barrier",
                                        "shfl",
                                        "tanh",
                                        "ex2",
                                        "fma",
                                        "add",
                                        "sub",
                                        "mul",
                                        "min",
                                        "max",
                                        "createpolicy",
                                        "redux",
                                        "st.bulk",
                                        "griddepcontrol",
                                        "isspacep",
                                        "cvta"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (span_is(name, names[i])) return true;
    }
    return false;
}

static bool operands_read(struct compiler *c, struct instruction *n)
{
    struct text *t = &c->text;
    while (!text_is(t, ";")) {
        if (n->operands == OPERANDS_MAX || !operand_read(c, n, &n->operand[n->operands], false)) return false;
        n->operands++;
        if (!text_take(t, ",")) break;
    }
    return text_is(t, ";");
}

static bool is_call(const struct instruction *n)
{
    return span_is(n->name, "call") || span_is(n->name, "tex") || span_is(n->name, "tld4") ||
           span_is(n->name, "suld") || span_is(n->name, "sust") || span_is(n->name, "sured");
}

static void emit_result_report(struct compiler *c, const struct instruction *n, enum emitted result)
{
    struct span_text x = n->text;
    switch (result) {
    case EMIT_OK:
    case EMIT_LIMIT_EXCEEDED:
        return;
    case EMIT_REFUSED:
        instruction_refuse(c, n);
        return;
    case EMIT_MISMATCH:
        report_error(c->report, n->line, "Arguments mismatch for instruction '%.*s'", SHOWN(n->name.length),
                     n->name.at);
        return;
    default:
        if (is_unsupported_instruction(n->name))
            instruction_refuse(c, n);
        else
            report_error(c->report, n->line, "Not a name of any known instruction: '%.*s'", SHOWN(x.length),
                         x.at);
    }
}

/* `call` reads its own operands; those of unsupported instructions are skipped. */
static void instruction_compile(struct compiler *c)
{
    struct text *t = &c->text;
    struct instruction n = {.line = t->line, .text = {t->at, t->length}};
    if (!instruction_split(&n)) {
        report_error(c->report, n.line, "Too many modifiers");
        skip_statement(c);
        return;
    }
    text_next(t);
    emit_fn *run = emitter_of(&n);
    if (!is_call(&n) && !operands_read(c, &n)) {
        if (is_unsupported_instruction(n.name) && !text_is(t, ";") && run == emit_alu) {
            instruction_refuse(c, &n);
        } else if (!c->report->error_count || t->kind != TOKEN_END) {
            report_error(c->report, t->line, "Parsing error near '%.*s': syntax error", SHOWN(t->length),
                         t->at);
        }
        skip_statement(c);
        return;
    }
    if (is_call(&n) && run == emit_alu)
        instruction_refuse(c, &n);
    else
        emit_result_report(c, &n, run(c, &n));
    skip_statement(c);
}

static void guarded_instruction_compile(struct compiler *c)
{
    struct text *t = &c->text;
    struct instruction n = {0};
    struct operand p;
    text_next(t);
    bool good = operand_read(c, &n, &p, true) && p.kind == OPERAND_REGISTER && p.type == T_PRED &&
                t->kind == TOKEN_WORD;
    if (!good) {
        report_error(c->report, t->line, "Parsing error near '%.*s': expected a predicate", SHOWN(t->length),
                     t->at);
        skip_statement(c);
        return;
    }
    c->guard = (p.place + 1) | (p.negated ? GUARD_NOT : 0);
    instruction_compile(c);
    c->guard = 0;
}

static void label_define(struct compiler *c, struct span_text name)
{
    struct symbol *s = scope_find(c, name.at, name.length);
    if (s && s->kind == SYMBOL_LABEL && s->scope == c->scope)
        report_error(c->report, c->text.line, "Duplicate definition of label '%.*s'", SHOWN(name.length),
                     name.at);
    s = scope_add(c, name.at, name.length, SYMBOL_LABEL);
    if (s) s->index = c->function->op_count;
}

/* name: .branchtargets a, b, c; or .callprototype ...; or .calltargets ...; */
static void target_table_compile(struct compiler *c, struct span_text name)
{
    struct text *t = &c->text;
    bool targets = text_is(t, ".branchtargets");
    struct symbol *s = scope_add(c, name.at, name.length, targets ? SYMBOL_TARGETS : SYMBOL_OTHER);
    text_next(t);
    if (!s || !targets) {
        skip_statement(c);
        return;
    }
    s->index = c->function->list_count;
    do {
        uint32_t at = c->function->list_count;
        if (t->kind != TOKEN_WORD || !list_add(c, 0) || !scope_refer(c, t->at, t->length, at, true)) break;
        s->count++;
        text_next(t);
    } while (text_take(t, ","));
    skip_statement(c);
}

static void directive_compile(struct compiler *c)
{
    struct text *t = &c->text;
    static const struct {
        const char *name;
        enum space space;
    } spaces[] = {{".local", SPACE_LOCAL},
                  {".shared", SPACE_SHARED},
                  {".param", SPACE_PARAM},
                  {".global", SPACE_GLOBAL},
                  {".const", SPACE_CONST}};
    bool external = false;
    while (text_is(t, ".extern") || text_is(t, ".visible") || text_is(t, ".weak") || text_is(t, ".common")) {
        external = external || text_is(t, ".extern");
        text_next(t);
    }
    if (text_take(t, ".reg")) {
        if (!declare_registers(c)) skip_statement(c);
        return;
    }
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
        if (!text_take(t, spaces[i].name)) continue;
        if (!declare_variables(c, spaces[i].space, external, false)) skip_statement(c);
        return;
    }
    if (text_is(t, ".loc")) { /* has no semicolon: numbers, and the words of an inlined location */
        uint32_t line = t->line;
        while (t->kind != TOKEN_END && t->line == line && !text_is(t, "}"))
            text_next(t);
        return;
    }
    if (!text_is(t, ".pragma"))
        report_error(c->report, t->line, "Parsing error near '%.*s': syntax error", SHOWN(t->length), t->at);
    skip_statement(c);
}

static void statement_compile(struct compiler *c)
{
    struct text *t = &c->text;
    if (t->at[0] == '.') {
        directive_compile(c);
        return;
    }
    /* A label is a word and a colon; the scanner is copied to look ahead. */
    struct text ahead = *t;
    text_next(&ahead);
    if (text_is(&ahead, ":")) {
        struct span_text name = {t->at, t->length};
        text_next(&ahead);
        *t = ahead;
        if (text_is(t, ".branchtargets") || text_is(t, ".callprototype") || text_is(t, ".calltargets"))
            target_table_compile(c, name);
        else
            label_define(c, name);
        return;
    }
    instruction_compile(c);
}

void body_read(struct compiler *c)
{
    struct text *t = &c->text;
    uint32_t depth = 1;
    while (depth && !c->limit_exceeded) {
        if (t->kind == TOKEN_END) {
            report_error(c->report, t->line, "Parsing error near end of file: expected '}'");
            return;
        }
        if (text_take(t, "{")) {
            if (!scope_open(c)) {
                report_error(c->report, t->line, "Scopes are nested too deep");
                c->limit_exceeded = true;
            }
            depth++;
        } else if (text_is(t, "}")) {
            if (--depth) scope_close(c);
            text_next(t);
        } else if (text_is(t, "@")) {
            guarded_instruction_compile(c);
        } else if (text_take(t, ";")) {
            continue;
        } else if (t->kind == TOKEN_WORD) {
            statement_compile(c);
        } else {
            report_error(c->report, t->line, "Parsing error near '%.*s': syntax error", SHOWN(t->length),
                         t->at);
            text_next(t);
            skip_statement(c);
        }
    }
}
