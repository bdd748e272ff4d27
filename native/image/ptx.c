/*
 * Reader of the declarations in PTX text: `.version`, `.target`, `.entry NAME(params)` and module-level
 * `.global` variables. Words are scanned, with comments skipped; bodies are skipped by counting braces.
 */
#include "image/ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

struct scan {
    const char *at, *end;
    const char *word;
    size_t length;
};

static bool is_word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

static void blanks_skip(struct scan *s)
{
    while (s->at < s->end) {
        if (isspace((unsigned char)*s->at)) {
            s->at++;
        } else if (s->end - s->at >= 2 && s->at[0] == '/' && s->at[1] == '/') {
            while (s->at < s->end && *s->at != '\n')
                s->at++;
        } else if (s->end - s->at >= 2 && s->at[0] == '/' && s->at[1] == '*') {
            for (s->at += 2; s->at < s->end && !(s->at[-1] == '/' && s->at[-2] == '*'); s->at++)
                ;
        } else {
            return;
        }
    }
}

/* The next word, or one punctuation mark. */
static bool word_next(struct scan *s)
{
    blanks_skip(s);
    if (s->at >= s->end) return false;
    s->word = s->at;
    if (*s->at == '"') {
        for (s->at++; s->at < s->end && *s->at != '"'; s->at++)
            ;
        if (s->at < s->end) s->at++;
    } else if (is_word_char(*s->at)) {
        while (s->at < s->end && is_word_char(*s->at))
            s->at++;
    } else {
        s->at++;
    }
    s->length = (size_t)(s->at - s->word);
    return true;
}

static bool word_is(const struct scan *s, const char *text)
{
    return strlen(text) == s->length && memcmp(s->word, text, s->length) == 0;
}

static unsigned long word_number(const struct scan *s)
{
    unsigned long v = 0;
    for (size_t i = 0; i < s->length && isdigit((unsigned char)s->word[i]) && v < 1ul << 40; i++)
        v = v * 10 + (unsigned long)(s->word[i] - '0');
    return v;
}

/* Bytes of a fundamental type such as `.u64`; 0 if the word is not a type. */
static uint32_t type_bytes(const struct scan *s)
{
    if (s->length == 5 && memcmp(s->word, ".pred", 5) == 0) return 1;
    if (s->length < 3 || s->word[0] != '.' || !strchr("bsuf", s->word[1])) return 0;
    uint32_t bits = 0;
    for (size_t i = 2; i < s->length; i++) {
        if (!isdigit((unsigned char)s->word[i])) return 0;
        bits = bits * 10 + (uint32_t)(s->word[i] - '0');
    }
    return bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128 ? bits / 8 : 0;
}

struct variable {
    uint32_t element, alignment;
    uint64_t count;
    const char *name;
    size_t length;
};

/* Read the words of one declaration up to one of the marks in `stop`; the scanner stays on that mark. */
static bool declaration_read(struct scan *s, struct variable *v, const char *stop)
{
    *v = (struct variable){.count = 1};
    while (word_next(s)) {
        if (s->length == 1 && strchr(stop, *s->word)) return true;
        if (type_bytes(s)) {
            v->element = type_bytes(s);
        } else if (word_is(s, ".align")) {
            if (!word_next(s)) return false;
            v->alignment = (uint32_t)word_number(s);
        } else if (word_is(s, "[")) {
            if (!word_next(s)) return false;
            v->count *= word_is(s, "]") ? 0 : word_number(s);
        } else if (s->word[0] != '.' && s->length &&
                   (isalpha((unsigned char)*s->word) || strchr("_$%", *s->word))) {
            v->name = s->word;
            v->length = s->length;
        } else if (word_is(s, "=")) {
            int depth = 0;
            while (word_next(s)) {
                depth += word_is(s, "{") - word_is(s, "}");
                if (depth == 0 && s->length == 1 && strchr(stop, *s->word)) return true;
            }
            return false;
        }
    }
    return false;
}

static bool parameters_read(struct scan *s, struct entry_point *e)
{
    uint32_t at = 0;
    for (;;) {
        struct variable v;
        if (!declaration_read(s, &v, ",)")) return false;
        if (v.element) {
            uint64_t size = v.element * v.count;
            uint32_t alignment = v.alignment ? v.alignment : v.element;
            if (size > 32764 || e->parameter_count == PARAMETERS_MAX) return false;
            at = (uint32_t)round_up(at, alignment ? alignment : 1);
            e->parameter[e->parameter_count++] = (struct parameter){at, (uint32_t)size};
            at += (uint32_t)size;
        }
        if (word_is(s, ")")) break;
    }
    e->has_parameters = true;
    return true;
}

/* Read from behind `.entry`: name, parameters, directives, body. */
static bool entry_read(struct scan *s, struct image *image)
{
    if (!word_next(s)) return false;
    struct entry_point *e = image_add_entry(image, s->word, s->length);
    if (!e) return false;
    e->has_parameters = true;
    while (word_next(s)) {
        if (word_is(s, "(")) {
            if (!parameters_read(s, e)) return false;
        } else if (word_is(s, ".maxntid") || word_is(s, ".reqntid")) {
            uint32_t most = 1;
            do {
                if (!word_next(s)) return false;
                most *= (uint32_t)(word_number(s) ? word_number(s) : 1);
                blanks_skip(s);
            } while (s->at < s->end && *s->at == ',' && word_next(s));
            if (most && most <= 1024) e->threads_max = most;
        } else if (word_is(s, ";")) {
            return true; /* a prototype */
        } else if (word_is(s, "{")) {
            for (int depth = 1; depth > 0;) {
                if (!word_next(s)) return false;
                depth += word_is(s, "{") - word_is(s, "}");
            }
            return true;
        }
    }
    return false;
}

CUresult ptx_parse(const char *text, size_t length, uint32_t device_sm, struct image *image)
{
    struct scan s = {.at = text, .end = text + length};
    bool versioned = false;
    int depth = 0;
    while (word_next(&s)) {
        depth += word_is(&s, "{") - word_is(&s, "}");
        if (depth > 0) continue;
        if (word_is(&s, ".version")) {
            if (!word_next(&s)) return CUDA_ERROR_INVALID_PTX;
            const char *dot = memchr(s.word, '.', s.length);
            bool minor = dot && dot + 1 < s.word + s.length && isdigit((unsigned char)dot[1]);
            image->ptx_version = (uint32_t)word_number(&s) * 10 + (minor ? (uint32_t)(dot[1] - '0') : 0);
            versioned = true;
        } else if (word_is(&s, ".target")) {
            if (!word_next(&s)) return CUDA_ERROR_INVALID_PTX;
            if (s.length > 3 && memcmp(s.word, "sm_", 3) == 0) {
                struct scan sm = {.word = s.word + 3, .length = s.length - 3};
                if (word_number(&sm) > device_sm) return CUDA_ERROR_NO_BINARY_FOR_GPU;
                image->binary_version = (uint32_t)word_number(&sm);
            }
        } else if (word_is(&s, ".entry")) {
            if (!versioned || !entry_read(&s, image)) return CUDA_ERROR_INVALID_PTX;
        } else if (word_is(&s, ".global") || word_is(&s, ".const")) {
            struct variable v;
            if (!declaration_read(&s, &v, ";")) return CUDA_ERROR_INVALID_PTX;
            if (v.name && v.element && !image_add_global(image, v.name, v.length, v.element * v.count))
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    image->code_bytes = length;
    if (!versioned) return CUDA_ERROR_INVALID_PTX;
    return image_keep_ptx(image, text, length) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
