/* Compilation of modules: everything outside of function bodies, and function heads. */
#include "sim/ptx/compile.h"

#include "sim/ptx/body.h"
#include "sim/ptx/builtin.h"
#include "sim/ptx/control.h"
#include "sim/ptx/declare.h"
#include "sim/ptx/reconvergence.h"
#include "sim/ptx/scope.h"
#include "sim/ptx/storage.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN(n)             ((int)((n) < 200 ? (n) : 200))
#define PARAMETERS_BYTES_MAX 32764u
#define NEWEST_VERSION       90u /* of the driver's CUDA release */

static bool parse_error(struct compiler *c)
{
    struct text *t = &c->text;
    report_error(c->report, t->line, "Parsing error near '%.*s': syntax error", SHOWN(t->length), t->at);
    return false;
}

/* ---- parameters ---- */

static bool parameter_place_add(struct compiler *c, struct parameter_place **array, uint32_t *count,
                                uint64_t offset, uint64_t bytes)
{
    struct parameter_place *more = realloc(*array, (*count + 1) * sizeof *more);
    if (!more) {
        out_of_memory(c);
        return false;
    }
    *array = more;
    more[(*count)++] = (struct parameter_place){(uint32_t)offset, (uint32_t)bytes};
    return true;
}

/* An entry's parameters are in the buffer of the launch, those of a function among its locals. */
static bool parameter_compile(struct compiler *c, bool result)
{
    struct routine *f = c->function;
    struct declared d = {.space = SPACE_PARAM};
    if (text_is(&c->text, ".reg")) {
        report_note(c->report, c->text.line,
                    "Functions with registers for parameters are not known to the simulation");
        if (!f->refused) f->refused = strdup(".reg parameters");
        text_next(&c->text);
    } else if (!text_take(&c->text, ".param")) {
        return parse_error(c);
    }
    if (!declare_one(c, &d)) return false;
    struct symbol *s = scope_add(c, d.name.at, d.name.length, SYMBOL_VARIABLE);
    if (!s) return false;
    uint32_t *end = f->entry ? &f->parameter_bytes : &f->local_bytes;
    s->space = f->entry ? SPACE_PARAM : SPACE_LOCAL;
    s->type = d.type;
    s->bytes = d.bytes;
    s->offset = (*end + (uint64_t)d.alignment - 1) / d.alignment * d.alignment;
    if (s->offset + d.bytes > PARAMETERS_BYTES_MAX) return parse_error(c);
    *end = (uint32_t)(s->offset + d.bytes);
    return result ? parameter_place_add(c, &f->result, &f->result_count, s->offset, d.bytes)
                  : parameter_place_add(c, &f->parameter, &f->parameter_count, s->offset, d.bytes);
}

static bool parameters_compile(struct compiler *c, bool result)
{
    struct text *t = &c->text;
    if (!text_take(t, "(")) return true;
    while (!text_is(t, ")")) {
        if (!parameter_compile(c, result)) return false;
        if (!text_take(t, ",")) break;
    }
    return text_take(t, ")") || parse_error(c);
}

/* ---- heads ---- */

static uint32_t dimensions_read(struct compiler *c, uint32_t *out)
{
    uint64_t product = 1;
    struct literal l;
    for (int i = 0; i < 3; i++) {
        out[i] = 1;
        if (i && !text_take(&c->text, ",")) continue;
        if (!text_literal(&c->text, &l) || l.bits == 0 || l.bits > 1u << 16) return 0;
        out[i] = (uint32_t)l.bits;
        product *= l.bits;
        text_next(&c->text);
    }
    return product > UINT32_MAX ? UINT32_MAX : (uint32_t)product;
}

static bool head_directives_compile(struct compiler *c, struct routine *f)
{
    struct text *t = &c->text;
    while (t->kind == TOKEN_WORD && t->at[0] == '.') {
        uint32_t shape[3];
        if (text_is(t, ".maxntid") || text_is(t, ".reqntid")) {
            bool required = text_is(t, ".reqntid");
            text_next(t);
            uint32_t n = dimensions_read(c, shape);
            if (!n) return parse_error(c);
            f->threads_max = n;
            if (required) memcpy(f->threads_required, shape, sizeof shape);
            continue;
        }
        bool bare =
            text_is(t, ".noreturn") || text_is(t, ".explicitcluster") || text_is(t, ".blocksareclusters");
        text_next(t);
        while (!bare && t->kind != TOKEN_END && !text_is(t, "{") && !text_is(t, ";") &&
               !(t->kind == TOKEN_WORD && t->at[0] == '.'))
            text_next(t);
        if (text_is(t, ";")) { /* .pragma "..." ; before the body, or a prototype */
            struct text ahead = *t;
            text_next(&ahead);
            if (!text_is(&ahead, "{") && !(ahead.kind == TOKEN_WORD && ahead.at[0] == '.' && !bare))
                return true;
            if (bare) return true;
            *t = ahead;
        }
    }
    return true;
}

static void body_finish(struct compiler *c, struct routine *f)
{
    c->guard = 0;
    emit(c, op_return);
    f->register_bytes = c->register_bytes;
    f->register_words = c->register_bytes / (4 * LANES);
    f->defined = true;
    f->empty = f->op_count <= 2 && f->op[0].run == op_return;
}

static bool is_duplicate_definition(struct compiler *c, const struct routine *f, bool weak)
{
    if (!f->defined) return false;
    if (!weak && !f->weak)
        report_error(c->report, c->text.line, "Duplicate definition of function '%.200s'", f->name);
    return true;
}

/* A function that is read a second time, only to be discarded. */
static struct routine *function_discarded(struct compiler *c, const char *name, size_t length)
{
    uint32_t index;
    return function_new(c, name, length, &index);
}

static struct routine *function_find_or_new(struct compiler *c, struct span_text name, bool weak)
{
    struct symbol *s = scope_find(c, name.at, name.length);
    uint32_t index;
    if (s && s->kind == SYMBOL_FUNCTION) {
        struct routine *f = c->program->function[s->index];
        struct text ahead = c->text;
        (void)ahead;
        return f->defined && weak ? function_discarded(c, name.at, name.length) : f;
    }
    struct routine *f = function_new(c, name.at, name.length, &index);
    if (!f || !(s = scope_add(c, name.at, name.length, SYMBOL_FUNCTION))) return NULL;
    s->index = index;
    f->builtin = builtin_named(f->name);
    return f;
}

static void signature_clear(struct routine *f)
{
    free(f->parameter);
    free(f->result);
    f->parameter = f->result = NULL;
    f->parameter_count = f->result_count = 0;
    f->parameter_bytes = f->local_bytes = f->shared_bytes = 0;
}

/* Compile from behind .entry or .func. The results of a function precede its name, so they are read twice. */
static bool function_compile(struct compiler *c, bool entry, bool visible, bool external, bool weak)
{
    struct text *t = &c->text, begin = *t;
    while (!entry && text_is(t, "(") && t->kind != TOKEN_END) {
        while (t->kind != TOKEN_END && !text_is(t, ")"))
            text_next(t);
        text_next(t);
    }
    if (t->kind != TOKEN_WORD || t->at[0] == '.') return parse_error(c);
    struct span_text name = {t->at, t->length};
    struct routine *f = function_find_or_new(c, name, weak);
    if (!f) return false;
    bool twice = f->defined;
    if (twice) f = function_discarded(c, "", 0);
    if (!f || !scope_open(c)) return false;
    c->function = f;
    c->register_bytes = c->predicate_left = 0;
    c->op_capacity = c->list_capacity = 0;
    f->entry = entry;
    f->visible = f->visible || visible || weak;
    f->external = f->external || external;
    f->weak = f->weak || weak;
    signature_clear(f);
    if (!entry) *t = begin;
    bool ok = entry || parameters_compile(c, true);
    text_next(t); /* the name */
    ok = ok && parameters_compile(c, false) && head_directives_compile(c, f);
    if (ok && text_take(t, "{")) {
        if (twice) {
            struct symbol *s = scope_find(c, name.at, name.length);
            if (s && s->kind == SYMBOL_FUNCTION)
                is_duplicate_definition(c, c->program->function[s->index], weak);
        }
        body_read(c);
        body_finish(c, f);
        scope_close(c);
        if (!c->limit_exceeded) ok = flow_finish(c, f);
    } else {
        ok = ok && (text_take(t, ";") || parse_error(c));
        scope_close(c);
        f->local_bytes = 0;
    }
    c->function = NULL;
    return ok;
}

/* ---- the module ---- */

static bool version_compile(struct compiler *c)
{
    struct text *t = &c->text;
    if (t->kind != TOKEN_NUMBER) return parse_error(c);
    unsigned major = 0, minor = 0;
    size_t i = 0;
    for (; i < t->length && t->at[i] != '.' && major < 100; i++)
        major = major * 10 + (unsigned)(t->at[i] - '0');
    for (i++; i < t->length && minor < 10; i++)
        minor = minor * 10 + (unsigned)(t->at[i] - '0');
    c->version = major * 10 + minor;
    if (c->version > NEWEST_VERSION) {
        report_error(c->report, t->line, "Unsupported .version %u.%u; current version is '%u.%u'", major,
                     minor, NEWEST_VERSION / 10, NEWEST_VERSION % 10);
        c->report->version_unsupported = true;
        c->limit_exceeded = true;
        return false;
    }
    text_next(t);
    return true;
}

static bool section_skip(struct compiler *c)
{
    struct text *t = &c->text;
    while (t->kind != TOKEN_END && !text_is(t, "{"))
        text_next(t);
    for (uint32_t depth = 0; t->kind != TOKEN_END;) {
        depth += text_is(t, "{");
        depth -= text_is(t, "}") ? 1 : 0;
        text_next(t);
        if (!depth) break;
    }
    return true;
}

static bool line_skip(struct compiler *c)
{
    uint32_t line = c->text.line;
    while (c->text.kind != TOKEN_END && c->text.line == line)
        text_next(&c->text);
    return true;
}

static bool alias_compile(struct compiler *c)
{
    struct text *t = &c->text;
    struct span_text name = {t->at, t->length};
    text_next(t);
    if (!text_take(t, ",")) return parse_error(c);
    const struct symbol *s = scope_find(c, t->at, t->length);
    struct symbol *known = scope_find(c, name.at, name.length);
    text_next(t);
    if (!s || s->kind != SYMBOL_FUNCTION || !known || known->kind != SYMBOL_FUNCTION) return parse_error(c);
    known->index = s->index;
    return text_take(t, ";") || parse_error(c);
}

static bool module_statement_compile(struct compiler *c)
{
    struct text *t = &c->text;
    bool external = false, visible = false, weak = false;
    for (;; text_next(t)) {
        if (text_is(t, ".extern"))
            external = true;
        else if (text_is(t, ".visible"))
            visible = true;
        else if (text_is(t, ".weak") || text_is(t, ".common"))
            weak = true;
        else
            break;
    }
    if (text_take(t, ".entry")) return function_compile(c, true, visible, external, weak);
    if (text_take(t, ".func")) return function_compile(c, false, visible, external, weak);
    if (text_take(t, ".version")) return version_compile(c);
    if (text_take(t, ".target")) {
        struct literal l;
        struct text digits = {
            .at = t->at + 3, .length = t->length > 3 ? t->length - 3 : 0, .kind = TOKEN_NUMBER};
        while (digits.length && (digits.at[digits.length - 1] < '0' || digits.at[digits.length - 1] > '9'))
            digits.length--;
        if (digits.length && text_literal(&digits, &l)) c->target = (uint32_t)l.bits;
        return line_skip(c);
    }
    if (text_is(t, ".calabash_unit")) {
        scope_end_unit(c);
        text_next(t);
        return true;
    }
    if (text_take(t, ".calabash_registers")) {
        struct literal l;
        if (!text_literal(t, &l)) return parse_error(c);
        c->program->registers_max = (uint32_t)l.bits;
        text_next(t);
        return true;
    }
    if (text_is(t, ".address_size") || text_is(t, ".file") || text_is(t, ".loc")) return line_skip(c);
    if (text_is(t, ".pragma")) {
        skip_statement(c);
        return true;
    }
    if (text_is(t, ".section")) return section_skip(c);
    if (text_take(t, ".alias")) return alias_compile(c);
    if (text_take(t, ".global")) return declare_variables(c, SPACE_GLOBAL, external, visible || weak);
    if (text_take(t, ".const")) return declare_variables(c, SPACE_CONST, external, visible || weak);
    if (text_take(t, ".shared")) return declare_variables(c, SPACE_SHARED, external, visible);
    if (text_take(t, ".reg")) return declare_registers(c);
    if (text_take(t, ";")) return true;
    return parse_error(c);
}

static void undefined_functions_report(struct compiler *c)
{
    for (uint32_t i = 0; i < c->program->variable_count; i++) {
        const struct variable *v = &c->program->variable[i];
        if (v->external && v->space != SPACE_SHARED)
            report_note(c->report, 0, "Undefined reference to '%.200s'", v->name);
    }
}

struct program *ptx_compile(const char *text, size_t length, struct report *r)
{
    struct compiler c = {.report = r, .program = calloc(1, sizeof(struct program))};
    if (!c.program) return NULL;
    text_begin(&c.text, text, length);
    if (!text_is(&c.text, ".version"))
        report_error(r, c.text.line, "Missing .version directive at start of file");
    while (c.text.kind != TOKEN_END && !c.limit_exceeded && r->error_count < 20) {
        if (module_statement_compile(&c)) continue;
        c.function = NULL;
        c.guard = 0;
        while (c.scope)
            scope_close(&c);
        skip_statement(&c);
        if (text_is(&c.text, "}")) text_next(&c.text);
    }
    undefined_functions_report(&c);
    scope_free(&c);
    if (r->error_count || c.limit_exceeded) {
        program_free(c.program);
        return NULL;
    }
    return c.program;
}
