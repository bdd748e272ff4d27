/*
 * Functions that the driver provides to programs: printf, assert, the device's heap.
 *
 * They are called like other functions; their handlers read the arguments in the caller's frame.
 */
#include "sim/ptx/builtin.h"

#include "sim/ptx/lane_address.h"
#include "sim/ptx/warp.h"

#include <stdio.h>

/* Argument `k` of one lane. */
static u64 call_argument(const struct warp *w, const struct op *o, u32 k, u32 lane)
{
    const struct frame *f = w->running->frame;
    const uint32_t *list = f->function->list + o->list + 2 * ((o->list_count >> 16) + k);
    u64 v = 0;
    if (k >= (o->list_count & 0xffff)) return 0;
    if (list[1]) {
        memcpy(&v, (const u8 *)in(w, list[0]) + lane * list[1], list[1] < 8 ? list[1] : 8);
        return v;
    }
    u32 at = f->local_base + list[0];
    if (at + 8 <= w->local_capacity) memcpy(&v, w->local + (size_t)lane * w->local_capacity + at, 8);
    return v;
}

static void call_result_store(struct warp *w, const struct op *o, u32 lane, u64 value, u32 bytes)
{
    const struct frame *f = w->running->frame;
    const uint32_t *list = f->function->list + o->list;
    if (!(o->list_count >> 16)) return;
    if (list[1])
        memcpy((u8 *)out(w, list[0]) + lane * list[1], &value, list[1] < 8 ? list[1] : 8);
    else if (f->local_base + list[0] + bytes <= w->local_capacity)
        memcpy(w->local + (size_t)lane * w->local_capacity + f->local_base + list[0], &value, bytes);
}

/* Read `bytes` at a generic address of one lane; return false after a fault. */
static bool memory_read(struct warp *w, const struct op *o, u32 lane, u64 address, void *to, u32 bytes)
{
    u64 at[LANES];
    u8 *place[LANES];
    for (u32 k = 0; k < bytes; k++) {
        for (u32 i = 0; i < LANES; i++)
            at[i] = address + k;
        if (!lane_places(w, o, 1u << lane, SPACE_GENERIC, at, 1, place)) return false;
        ((u8 *)to)[k] = *place[lane];
    }
    return true;
}

static bool text_read(struct warp *w, const struct op *o, u32 lane, u64 address, char *to, u32 capacity)
{
    for (u32 k = 0; k + 1 < capacity; k++) {
        if (!memory_read(w, o, lane, address + k, &to[k], 1)) return false;
        if (!to[k]) return true;
    }
    to[capacity - 1] = 0;
    return true;
}

struct line {
    char text[4096];
    size_t length;
};

static void line_append(struct line *l, const char *text, size_t n)
{
    if (n > sizeof l->text - l->length) n = sizeof l->text - l->length;
    memcpy(l->text + l->length, text, n);
    l->length += n;
}

/* Return true for a field width of thousands, which would only print spaces and take long. */
static bool field_is_too_wide(const char *spec, size_t n)
{
    size_t digits = 0;
    for (size_t k = 0; k < n; k++) {
        digits = spec[k] >= '0' && spec[k] <= '9' ? digits + 1 : 0;
        if (digits > 4) return true;
    }
    return false;
}

/* Format one directive with its argument, which is at *at behind `arguments`. */
static bool directive_format(struct warp *w, const struct op *o, u32 lane, const char *spec, size_t n,
                             u64 arguments, u32 *at, struct line *l)
{
    char kind = spec[n - 1], format[40], text[1100];
    bool wide = memchr(spec, 'l', n) || kind == 'p' || kind == 's' || strchr("eEfFgGaA", kind);
    u64 v = 0;
    if (n >= sizeof format - 4 || field_is_too_wide(spec, n)) return true;
    *at = (*at + (wide ? 7u : 3u)) & ~(wide ? 7u : 3u);
    if (!memory_read(w, o, lane, arguments + *at, &v, wide ? 8 : 4)) return false;
    *at += wide ? 8 : 4;
    size_t plain = 0;
    for (size_t k = 0; k + 1 < n; k++) {
        if (!strchr("lhzjt", spec[k])) format[plain++] = spec[k];
    }
    if (strchr("diouxX", kind)) {
        memcpy(format + plain, "ll", 2);
        plain += 2;
    }
    format[plain] = kind;
    format[plain + 1] = 0;
    int length = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (strchr("di", kind)) {
        length = snprintf(text, sizeof text, format, wide ? (long long)v : (long long)(s32)(u32)v);
    } else if (strchr("ouxX", kind)) {
        length = snprintf(text, sizeof text, format, (unsigned long long)v);
    } else if (strchr("eEfFgGaA", kind)) {
        f64 d;
        memcpy(&d, &v, sizeof d);
        length = snprintf(text, sizeof text, format, d);
    } else if (kind == 'c') {
        length = snprintf(text, sizeof text, format, (int)v);
    } else if (kind == 'p') {
        length = snprintf(text, sizeof text, "0x%llx", (unsigned long long)v);
    } else if (kind == 's') {
        char string[1024];
        if (!v)
            memcpy(string, "(null)", 7);
        else if (!text_read(w, o, lane, v, string, sizeof string))
            return false;
        length = snprintf(text, sizeof text, format, string);
    }
#pragma GCC diagnostic pop
    if (length > 0) line_append(l, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
    return true;
}

static bool lane_printf(struct warp *w, const struct op *o, u32 lane, u64 format_at, u64 arguments)
{
    char format[2048];
    struct line l = {.length = 0};
    u32 at = 0;
    if (!text_read(w, o, lane, format_at, format, sizeof format)) return false;
    for (const char *p = format; *p;) {
        size_t n = strcspn(p, "%");
        line_append(&l, p, n);
        p += n;
        if (!*p) break;
        n = 1 + strspn(p + 1, "-+ #0123456789.*hlzjt");
        if (p[1] == '%' || !p[n] || memchr(p, '*', n)) {
            line_append(&l, "%", 1);
            p += p[1] == '%' ? 2 : 1;
            continue;
        }
        if (!directive_format(w, o, lane, p, n + 1, arguments, &at, &l)) return false;
        p += n + 1;
    }
    const struct surroundings *around = w->block->run->around;
    if (around->print) around->print(around->user, l.text, l.length);
    return true;
}

static HANDLER(do_vprintf)
{
    SET_LANES(mask)
    {
        if (!lane_printf(w, o, i, call_argument(w, o, 0, i), call_argument(w, o, 1, i))) return NULL;
        call_result_store(w, o, i, 1, 4);
    }
    w->turn = 0; /* it takes long: a launch that is to end must not wait for many */
    w->running->at = o + 1;
    return NULL;
}

/* __assertfail(message, file, line, function, size) */
static HANDLER(do_assertfail)
{
    u32 lane = FIRST(mask), thread[3];
    char message[256], file[256], function[256], text[1200];
    for (int k = 0; k < 3; k++)
        thread[k] = w->tid[k][lane];
    if (!text_read(w, o, lane, call_argument(w, o, 0, lane), message, sizeof message) ||
        !text_read(w, o, lane, call_argument(w, o, 1, lane), file, sizeof file) ||
        !text_read(w, o, lane, call_argument(w, o, 3, lane), function, sizeof function))
        return NULL;
    const u32 *at = w->block->ctaid;
    int n = snprintf(text, sizeof text,
                     "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n", file,
                     (u32)call_argument(w, o, 2, lane), function, at[0], at[1], at[2], thread[0], thread[1],
                     thread[2], message);
    const struct surroundings *around = w->block->run->around;
    if (around->print_error) around->print_error(around->user, text, (size_t)n);
    return warp_fault(w, o, RUN_ASSERT, "assertion failed", 0);
}

static HANDLER(do_malloc)
{
    const struct surroundings *around = w->block->run->around;
    SET_LANES(mask)
    call_result_store(w, o, i, around->take ? around->take(around->user, call_argument(w, o, 0, i)) : 0, 8);
    return o + 1;
}

static HANDLER(do_free)
{
    const struct surroundings *around = w->block->run->around;
    SET_LANES(mask)
    {
        u64 address = call_argument(w, o, 0, i);
        if (address && around->give) around->give(around->user, address);
    }
    return o + 1;
}

/* cudaCGGetIntrinsicHandle(scope): any value except 0 for a grid. */
static HANDLER(do_grid_handle)
{
    SET_LANES(mask) call_result_store(w, o, i, 1, 8);
    return o + 1;
}

/*
 * Return true if lanes of the same warp have not reached the grid's barrier: they must run, or no lane can
 * continue.
 */
static bool other_lanes_run(const struct warp *w)
{
    for (const struct fragment *f = w->fragments; f; f = f->next) {
        if (f->state == FRAGMENT_RUNS && !f->grid_phase) return true;
    }
    return false;
}

/*
 * cudaCGSynchronize(handle, flags): wait until all threads of the grid have arrived or ended. Waiting lanes
 * alternate with the others, which may be in blocks that have not begun.
 */
static HANDLER(do_grid_synchronize)
{
    struct run *r = w->block->run;
    struct fragment *f = w->running;
    const u32 *grid = r->shape.grid, *size = r->shape.block;
    u64 all = (u64)grid[0] * grid[1] * grid[2] * size[0] * size[1] * size[2];
    if (!r->shape.cooperative && r->block_count > 1)
        return warp_fault(w, o, RUN_FAILED, "a grid is synchronized that was not launched as cooperative,",
                          0);
    if (!f->grid_phase) {
        f->grid_phase = 1 + __atomic_load_n(&r->grid_phase, __ATOMIC_ACQUIRE);
        __atomic_add_fetch(&r->grid_arrived, (u64)__builtin_popcount(mask), __ATOMIC_ACQ_REL);
    }
    u64 come = __atomic_load_n(&r->grid_arrived, __ATOMIC_ACQUIRE);
    if (come && come + __atomic_load_n(&r->grid_gone, __ATOMIC_ACQUIRE) >= all &&
        __atomic_compare_exchange_n(&r->grid_arrived, &come, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        __atomic_add_fetch(&r->grid_phase, 1, __ATOMIC_RELEASE);
    if (__atomic_load_n(&r->grid_phase, __ATOMIC_ACQUIRE) < f->grid_phase) {
        f->at = o;
        warp_release_waiting(w, f);
        if (!other_lanes_run(w)) w->turn = 0;
        return NULL;
    }
    f->grid_phase = 0;
    SET_LANES(mask) call_result_store(w, o, i, 0, 4);
    return o + 1;
}

op_fn *builtin_named(const char *name)
{
    static const struct {
        const char *name;
        op_fn *run;
    } known[] = {
        {"vprintf", do_vprintf},
        {"__assertfail", do_assertfail},
        {"__assert_fail", do_assertfail},
        {"malloc", do_malloc},
        {"free", do_free},
        {"cudaCGGetIntrinsicHandle", do_grid_handle},
        {"cudaCGSynchronize", do_grid_synchronize},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, name) == 0) return known[i].run;
    }
    return NULL;
}
