/* The scanner of PTX text: tokens with their lines. */
#ifndef CALABASH_SIM_PTX_SCANNER_H
#define CALABASH_SIM_PTX_SCANNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum token { TOKEN_END, TOKEN_WORD, TOKEN_NUMBER, TOKEN_STRING, TOKEN_MARK };

/* The scanner is always positioned on a token: that of `kind`, [at, at + length). */
struct text {
    const char *next, *end;
    const char *at;
    size_t length;
    enum token kind;
    uint32_t line;
};

struct literal {
    uint64_t bits;    /* an integer; of a floating literal its bit pattern */
    uint8_t floating; /* 0: an integer, 4: f32, 8: f64 */
};

void text_begin(struct text *t, const char *start, size_t length);
void text_next(struct text *t);
/* Return true if the token is this word or mark. */
bool text_is(const struct text *t, const char *what);
/* The same, and advance if it is. */
bool text_take(struct text *t, const char *what);
/* The value of a number token; false if it is not a number. */
bool text_literal(const struct text *t, struct literal *out);

#endif
