/* Compiler messages for the log buffers of a program, truncated to their size. */
#include "sim/ptx/report.h"

#include <stdarg.h>
#include <stdio.h>

#define ERRORS_MAX 20u

static void message_append(char *to, size_t *length, uint32_t line, const char *kind, const char *format,
                           va_list list)
{
    int n = snprintf(to + *length, REPORT_BYTES - *length, "ptxas application ptx input, line %u; %s: ", line,
                     kind);
    size_t at = *length + (size_t)n;
    if (at >= REPORT_BYTES - 2) {
        to[*length] = 0;
        return;
    }
    n = vsnprintf(to + at, REPORT_BYTES - at - 1, format, list);
    at += (size_t)n;
    if (at > REPORT_BYTES - 2) at = REPORT_BYTES - 2;
    to[at++] = '\n';
    to[at] = 0;
    *length = at;
}

void report_error(struct report *r, uint32_t line, const char *format, ...)
{
    va_list list;
    if (r->error_count++ >= ERRORS_MAX) return;
    va_start(list, format);
    message_append(r->errors, &r->error_length, line, "error   ", format, list);
    va_end(list);
}

void report_note(struct report *r, uint32_t line, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    message_append(r->notes, &r->note_length, line, "warning ", format, list);
    va_end(list);
}
