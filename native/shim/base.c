/* The state of this process, the user-visible message, and the lists of functions that units register. */
#define _GNU_SOURCE
#include "shim/base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct cb_shim cb;

extern void (*const __start_cb_at_fork[])(void) __attribute__((visibility("hidden")));
extern void (*const __stop_cb_at_fork[])(void) __attribute__((visibility("hidden")));
extern void (*const __start_cb_on_shortage[])(int) __attribute__((visibility("hidden")));
extern void (*const __stop_cb_on_shortage[])(int) __attribute__((visibility("hidden")));

void cb_run_at_fork(void)
{
    for (void (*const *function)(void) = __start_cb_at_fork; function < __stop_cb_at_fork; function++)
        (*function)();
}

void cb_run_on_shortage(int device)
{
    for (void (*const *function)(int) = __start_cb_on_shortage; function < __stop_cb_on_shortage; function++)
        (*function)(device);
}

void cb_say(const char *format, ...)
{
    static int said;
    char line[1024] = "calabash: ";
    size_t length = strlen(line);
    va_list arguments;
    int saved = errno;
    if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        return; /* only the first message is written: it is the cause to fix */
    va_start(arguments, format);
    int more = vsnprintf(line + length, sizeof(line) - length - 1, format, arguments);
    va_end(arguments);
    length += more < 0 ? 0 : (size_t)more;
    if (length > sizeof(line) - 2) length = sizeof(line) - 2;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0) {
        /* standard error is closed: the message is lost */
    }
    errno = saved;
}
