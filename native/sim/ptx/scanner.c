/*
 * The scanner of PTX text. A word includes its dots (`ld.global.f32`, `%tid.x`, `.shared::cta`): the parser
 * knows whether it is an instruction or a name. A word that begins with a dot is a directive or a type, and
 * ends before the next dot: `.reg.b16` is two words.
 */
#include "sim/ptx/scanner.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool is_word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

static void blanks_skip(struct text *t)
{
    while (t->next < t->end) {
        const char *p = t->next;
        size_t left = (size_t)(t->end - p);
        if (*p == '\n') {
            t->line++;
            t->next++;
        } else if (isspace((unsigned char)*p)) {
            t->next++;
        } else if (left >= 2 && p[0] == '/' && p[1] == '/') {
            const char *end = memchr(p, '\n', left);
            t->next = end ? end : t->end;
        } else if (left >= 2 && p[0] == '/' && p[1] == '*') {
            for (t->next += 2; t->next < t->end; t->next++) {
                if (*t->next == '\n') t->line++;
                if (t->next - p >= 3 && t->next[0] == '/' && t->next[-1] == '*') break;
            }
            if (t->next < t->end) t->next++;
        } else {
            return;
        }
    }
}

static void word_take(struct text *t)
{
    bool directive = *t->next == '.';
    while (t->next < t->end) {
        if (directive && *t->next == '.' && t->next != t->at) return;
        if (is_word_char(*t->next))
            t->next++;
        else if (t->end - t->next > 2 && t->next[0] == ':' && t->next[1] == ':' && is_word_char(t->next[2]))
            t->next += 2;
        else
            return;
    }
}

void text_next(struct text *t)
{
    blanks_skip(t);
    t->at = t->next;
    t->length = 0;
    if (t->next >= t->end) {
        t->kind = TOKEN_END;
        return;
    }
    char c = *t->next;
    if (c == '"') {
        t->kind = TOKEN_STRING;
        for (t->next++; t->next < t->end && *t->next != '"' && *t->next != '\n'; t->next++)
            ;
        if (t->next < t->end && *t->next == '"') t->next++;
    } else if (isdigit((unsigned char)c)) {
        t->kind = TOKEN_NUMBER;
        word_take(t);
    } else if (is_word_char(c)) {
        t->kind = TOKEN_WORD;
        word_take(t);
    } else {
        t->kind = TOKEN_MARK;
        t->next++;
    }
    t->length = (size_t)(t->next - t->at);
}

void text_begin(struct text *t, const char *start, size_t length)
{
    *t = (struct text){.next = start, .end = start + length, .line = 1};
    text_next(t);
}

bool text_is(const struct text *t, const char *what)
{
    return t->kind != TOKEN_END && strlen(what) == t->length && memcmp(t->at, what, t->length) == 0;
}

bool text_take(struct text *t, const char *what)
{
    if (!text_is(t, what)) return false;
    text_next(t);
    return true;
}

static bool digits_parse(const char *at, size_t length, unsigned base, uint64_t *out)
{
    uint64_t v = 0;
    if (length == 0) return false;
    for (size_t i = 0; i < length; i++) {
        char c = (char)tolower((unsigned char)at[i]);
        unsigned d = c >= 'a' ? (unsigned)(c - 'a' + 10) : (unsigned)(c - '0');
        if (!isalnum((unsigned char)c) || d >= base || v > (UINT64_MAX - d) / base) return false;
        v = v * base + d;
    }
    *out = v;
    return true;
}

bool text_literal(const struct text *t, struct literal *out)
{
    const char *at = t->at;
    size_t n = t->length;
    *out = (struct literal){0};
    if (t->kind != TOKEN_NUMBER) return false;
    if (n == 10 && at[0] == '0' && (at[1] == 'f' || at[1] == 'F')) {
        out->floating = 4;
        return digits_parse(at + 2, 8, 16, &out->bits);
    }
    if (n == 18 && at[0] == '0' && (at[1] == 'd' || at[1] == 'D')) {
        out->floating = 8;
        return digits_parse(at + 2, 16, 16, &out->bits);
    }
    if (memchr(at, '.', n)) {
        char copy[64], *end;
        if (n >= sizeof copy) return false;
        memcpy(copy, at, n);
        copy[n] = 0;
        double v = strtod(copy, &end);
        memcpy(&out->bits, &v, sizeof v);
        out->floating = 8;
        return *end == 0;
    }
    if (at[n - 1] == 'U' || at[n - 1] == 'u') n--;
    if (n > 2 && at[0] == '0' && (at[1] == 'x' || at[1] == 'X'))
        return digits_parse(at + 2, n - 2, 16, &out->bits);
    if (n > 2 && at[0] == '0' && (at[1] == 'b' || at[1] == 'B'))
        return digits_parse(at + 2, n - 2, 2, &out->bits);
    return digits_parse(at, n, n > 1 && at[0] == '0' ? 8 : 10, &out->bits);
}
