/* Parts of calabash-simctl, the keeper of simulated nodes. */
#ifndef CALABASH_SIMCTL_H
#define CALABASH_SIMCTL_H

#include "sim/node/state.h"

#include <stdarg.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Print "error: ..." and, when not NULL, "hint: ..."; end with EXIT_FAILED. */
_Noreturn void simctl_fail(const char *hint, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Open a node file or end with an error that says what is wrong with it. */
void simctl_open(struct sim *s, const char *path);

/* Index of the device that `text` names (index or UUID) or UINT32_MAX for "all"; ends with an error for none.
 */
uint32_t simctl_device(const struct sim *s, const char *text);

int simctl_show(struct sim *s, int json);
int simctl_unserved(struct sim *s);

/* Apply one fault to one device. `what` and `value` (may be NULL) are the user's words. */
void simctl_inject(struct sim *s, uint32_t device, const char *what, const char *value);
extern const char simctl_inject_help[];

#endif
