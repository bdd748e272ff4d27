/*
 * Fuzzer of the PTX compiler and interpreter: damages texts, compiles them, and runs what still compiles:
 * `ROUNDS SEED LAST FILE...`. Any outcome is accepted except a fault, an endless loop of the compiler, a launch
 * that cannot be ended, or unbounded memory. The last input is written to LAST if one of these happens.
 */
#include "sim/ptx/compile.h"
#include "sim/ptx/grid.h"

#include <malloc.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define SEEDS_MAX    256
#define TEXT_MAX     (1u << 18)
#define MEMORY_BYTES (1u << 16)
#define SECONDS      30 /* of processor time for one round */
#define WATCHES      2 /* how often a launch checks for cancellation before it is cancelled */

static struct {
    char *text;
    size_t length;
} seed[SEEDS_MAX];
static int seeds;
static char text[TEXT_MAX + 1];
static size_t length;
static char good_text[TEXT_MAX]; /* text that compiled, to continue from */
static size_t good_length;
static const char *last_path;
static uint64_t state;
static unsigned char *memory;
static int watched;

static uint32_t pick(uint64_t most)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return most ? (uint32_t)((state >> 11) % most) : 0;
}

static void keep_last(void)
{
    FILE *f = fopen(last_path, "wb");
    if (!f) return;
    fwrite(text, 1, length, f);
    fclose(f);
}

static void too_long(int number)
{
    static const char said[] = "a round took too long\n";
    (void)number;
    (void)!write(2, said, sizeof said - 1);
    keep_last();
    _exit(3);
}

/* ---- damage ---- */

static void splice(size_t at, size_t out, const char *in, size_t bytes)
{
    if (at > length) at = length;
    if (out > length - at) out = length - at;
    if (length - out + bytes > TEXT_MAX) return;
    memmove(text + at + bytes, text + at + out, length - at - out);
    memcpy(text + at, in, bytes);
    length = length - out + bytes;
}

static int of_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '%' ||
           c == '$';
}

/* A word of a text, without its dots or with one. */
static void word_at(const char *in, size_t size, size_t at, size_t *begin, size_t *end)
{
    while (at < size && !of_word(in[at]))
        at++;
    *end = at;
    while (at > 0 && of_word(in[at - 1]))
        at--;
    if (at > 0 && in[at - 1] == '.' && pick(2)) at--;
    *begin = at;
    while (*end < size && of_word(in[*end]))
        ++*end;
}

static void line_at(const char *in, size_t size, size_t at, size_t *begin, size_t *end)
{
    char stop = pick(3) ? ';' : '\n';
    *begin = at;
    while (*begin > 0 && in[*begin - 1] != stop)
        --*begin;
    *end = at;
    while (*end < size && in[*end] != stop)
        ++*end;
    if (*end < size) ++*end;
}

static const char *const numbers[] = {"0",          "1",          "-1",         "31",          "32",
                                      "64",         "255",        "256",        "65535",       "65536",
                                      "1048576",    "4194304",    "4194305",    "2147483647",  "2147483648",
                                      "4294967295", "4294967296", "268435456",  "0x7fffffff",  "-2147483648",
                                      "1024",       "2048",       "07777",      "0b1111",      "0f7F800000",
                                      "0fFFC00000", "0d7FF0000000000000",       "1.5",         "1e309",
                                      "18446744073709551615",     "18446744073709551616",      "9223372036854775808",
                                      "99999999999999999999999"};
static const char *const pieces[] = {
    "{", "}", "(", ")", "[", "]", ";", ",", ":", "@", "!", "|", "<", ">", "=", "+", "-", "_", "\"", "//", "/*", "*/", ".",
    "::", "%", ".pred", ".b8", ".b16", ".b32", ".b64", ".b128", ".f16", ".f16x2", ".bf16", ".bf16x2", ".tf32", ".f32",
    ".f64", ".u8", ".s8", ".u16", ".s64", ".v2", ".v4", ".v8", ".global", ".shared", ".local", ".param", ".const",
    ".reg .b32 %z<4194304>;", ".reg .pred %z;", ".align 1024", ".extern", ".visible", ".weak", ".entry x()", ".func y()",
    ".section x {", ".loc 1 2 3\n", ".pragma \"nounroll\";", ".calabash.unit", "ret;", "exit;", "bar.sync 0;", "call k;",
    "%tid.x", "%clock64", "%laneid", ".rz", ".rm", ".sat", ".ftz", ".approx", ".cc", ".sync", ".wide", ".hi", ".volatile"};

static void damage_once(void)
{
    size_t at = pick(length + 1), begin, end, from_begin, from_end;
    int other = (int)pick((uint64_t)seeds);
    size_t there = pick(seed[other].length);
    char byte = (char)pick(256);
    switch (pick(12)) {
    case 0:
        if (length) text[pick(length)] = byte;
        return;
    case 1:
        splice(at, pick(4), &byte, pick(2));
        return;
    case 2:
    case 3:
    case 4: /* replace a word by another */
        word_at(text, length, at, &begin, &end);
        word_at(seed[other].text, seed[other].length, there, &from_begin, &from_end);
        splice(begin, end - begin, seed[other].text + from_begin, from_end - from_begin);
        return;
    case 5:
    case 6: { /* replace a word by a number */
        const char *number = numbers[pick(sizeof numbers / sizeof numbers[0])];
        while (at < length && (text[at] < '0' || text[at] > '9'))
            at++;
        for (end = at; end < length && of_word(text[end]); end++)
            ;
        splice(at, end - at, number, strlen(number));
        return;
    }
    case 7: { /* insert a piece between two words, or replace one by it */
        const char *piece = pieces[pick(sizeof pieces / sizeof pieces[0])];
        word_at(text, length, at, &begin, &end);
        splice(begin, pick(2) ? end - begin : 0, piece, strlen(piece));
        return;
    }
    case 8: /* duplicate or delete a line */
        line_at(text, length, at, &begin, &end);
        if (pick(2))
            splice(begin, end - begin, "", 0);
        else if (end - begin < 4096) {
            char line[4096];
            memcpy(line, text + begin, end - begin);
            splice(pick(4) ? begin : pick(length + 1), 0, line, end - begin);
        }
        return;
    case 9:
    case 10: /* insert a line of another text */
        line_at(seed[other].text, seed[other].length, there, &from_begin, &from_end);
        line_at(text, length, at, &begin, &end);
        splice(begin, pick(2) ? end - begin : 0, seed[other].text + from_begin, from_end - from_begin);
        return;
    default: /* cut the end, or repeat a piece many times */
        if (pick(4) == 0) {
            length = at;
        } else {
            const char *piece = pieces[pick(sizeof pieces / sizeof pieces[0])];
            for (uint32_t k = pick(pick(8) ? 4 : 400); k > 0; k--)
                splice(at, 0, piece, strlen(piece));
        }
    }
}

/* ---- running ---- */

static bool memory_at(void *user, uint64_t address, struct span *out)
{
    (void)user;
    *out = (struct span){(uint64_t)memory, (uint64_t)memory + MEMORY_BYTES};
    return address >= out->base && address < out->end;
}

static bool cancelled(void *user)
{
    (void)user;
    return ++watched > WATCHES;
}

static void print(void *user, const char *line, size_t size)
{
    static size_t bytes;
    (void)user;
    for (size_t i = 0; i < size; i++)
        bytes += (unsigned char)line[i];
}

static uint64_t take(void *user, uint64_t bytes)
{
    (void)user;
    return bytes <= 64 ? (uint64_t)memory + 1024 : 0;
}

static void give(void *user, uint64_t address)
{
    (void)user;
    (void)address;
}

/* Place the variables in the only piece of memory; return false if it is too small. */
static bool place(const struct program *p, struct placed *to)
{
    uint64_t used = MEMORY_BYTES / 2;
    to->program = p;
    to->address = calloc(p->variable_count + 1, sizeof *to->address);
    to->constant = aligned_alloc(64, (p->constant_bytes + 127u) / 64 * 64);
    if (!to->address || !to->constant) return false;
    for (uint32_t i = 0; i < p->variable_count; i++) {
        const struct variable *v = &p->variable[i];
        used = (used + 1023) / 1024 * 1024;
        if ((v->space != SPACE_GLOBAL && v->space != SPACE_CONST) || v->external) continue;
        if (v->bytes > MEMORY_BYTES - used) return false;
        to->address[i] = (uint64_t)memory + used;
        if (v->initial_bytes) memcpy(memory + used, v->initial, v->initial_bytes < v->bytes ? v->initial_bytes : v->bytes);
        for (uint32_t k = 0; k < v->reloc_count; k++) {
            if (v->reloc[k].offset + (v->reloc[k].width < 8 ? v->reloc[k].width : 8) > v->bytes ||
                v->reloc[k].target >= (v->reloc[k].function ? p->function_count : p->variable_count))
                abort();
        }
        used += v->bytes;
    }
    if (p->constant_bytes) memcpy(to->constant, p->constant, p->constant_bytes);
    for (uint32_t i = 0; i < p->reloc_count; i++) {
        const struct reloc *r = &p->reloc[i];
        if (r->target >= (r->function ? p->function_count : p->variable_count)) abort();
        uint64_t value = r->function ? WINDOW_FUNCTION | r->target : to->address[r->target] + r->addend;
        for (uint32_t lane = 0; lane < LANES; lane++)
            memcpy(to->constant + r->offset + lane * r->width, &value, r->width);
    }
    return true;
}

static int run_all(const struct program *p)
{
    const struct surroundings around = {
        .memory = memory_at, .cancelled = cancelled, .print = print, .take = take, .give = give};
    struct placed placed = {0};
    int ran = 0;
    bool good = place(p, &placed);
    for (uint32_t i = 0; good && i < p->function_count; i++) {
        const struct routine *f = p->function[i];
        struct run r = {.entry = f,
                        .placed = &placed,
                        .around = &around,
                        .shape = {.grid = {1 + pick(2), 1, 1}, .block = {pick(2) ? 32 : 1 + pick(70), 1, 1}}};
        r.shape.dynamic_shared_bytes = pick(2) ? 256 : 0;
        r.shape.sm_count = 8;
        if (!f->entry || !f->defined || f->refused || grid_block_bytes(p, f, &r.shape) > 64u << 20) continue;
        uint64_t *parameters = calloc(f->parameter_bytes / 8 + 1, 8);
        for (uint32_t k = 0; k < f->parameter_bytes / 8; k++)
            parameters[k] = pick(8) ? (uint64_t)memory + 8 * pick(64) : pick(1u << 20);
        r.parameters = (const uint8_t *)parameters;
        watched = 0;
        grid_run(&r);
        free(parameters);
        ran++;
    }
    free(placed.address);
    free(placed.constant);
    return ran;
}

static int one(struct report *report)
{
    char *copy = malloc(length ? length : 1); /* of exactly this size, so that a read behind its end is detected */
    memcpy(copy, text, length);
    memset(report, 0, sizeof *report);
    struct program *p = ptx_compile(copy, length, report);
    int ran = p ? run_all(p) : -1;
    if (!p && !report->error_count) abort();
    program_free(p);
    free(copy);
    return ran;
}

static bool read_seed(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || seeds == SEEDS_MAX) return false;
    char *at = malloc(TEXT_MAX);
    size_t n = at ? fread(at, 1, TEXT_MAX, f) : 0;
    fclose(f);
    seed[seeds].text = at;
    seed[seeds++].length = n;
    return n > 0;
}

int main(int argc, char **argv)
{
    static struct report report;
    long rounds = argc > 4 ? atol(argv[1]) : 0, compiled = 0, ran = 0;
    state = 0x9e3779b97f4a7c15ull ^ (argc > 2 ? strtoull(argv[2], NULL, 10) * 0x2545f4914f6cdd1dull : 0);
    last_path = argc > 3 ? argv[3] : "";
    memory = aligned_alloc(4096, MEMORY_BYTES);
    for (int i = 4; i < argc; i++) {
        if (!read_seed(argv[i])) return 2;
    }
    if (!seeds || !memory) return 2;
    memset(memory, 0, MEMORY_BYTES);
    signal(SIGPROF, too_long);
    __sanitizer_set_death_callback(keep_last);
    for (int i = 0; i < seeds; i++) {
        length = seed[i].length;
        memcpy(text, seed[i].text, length);
        if (one(&report) >= 0)
            ran++;
        else
            printf("%s: %s", argv[4 + i], report.errors);
    }
    printf("%ld of %d seeds compile\n", ran, seeds);
    ran = 0;
    for (long round = 0; round < rounds; round++) {
        const struct itimerval limit = {.it_value = {.tv_sec = SECONDS}};
        if (round % 32 == 0) {
            uint32_t which = pick((uint64_t)seeds);
            good_length = seed[which].length;
            memcpy(good_text, seed[which].text, good_length);
        }
        if (pick(8) || !length) {
            length = good_length;
            memcpy(text, good_text, length);
        }
        for (uint32_t k = 1 + pick(pick(3) ? 1 : 12); k > 0; k--)
            damage_once();
        setitimer(ITIMER_PROF, &limit, NULL);
        int done = one(&report);
        compiled += done >= 0;
        ran += done > 0;
        if (done < 0) continue;
        good_length = length;
        memcpy(good_text, text, length);
    }
    printf("%ld rounds: %ld compiled, %ld ran\n", rounds, compiled, ran);
    return 0;
}
