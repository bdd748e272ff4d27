/* Opening a node for the tool, and failing with words. */
#ifndef CALABASH_SIMCTL_OPEN_H
#define CALABASH_SIMCTL_OPEN_H

#include "sim/node/state.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Print "error: ..." and, when not NULL, "hint: ..."; end with EXIT_FAILED. */
_Noreturn void simctl_fail(const char *hint, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* From now on a fault or a long wait ends the process with an error line. */
void simctl_set_traps(void);

/* What that line says, and what the trap removes: files that are half made. */
void simctl_trap(const char *message, const char *first, const char *second);

/* The state file that a NODE means: a name is looked up below the home directory, as `calabash sim` does;
 * what cannot be a name (it holds a '/', a '.') is a path. */
const char *simctl_path(const char *node);

/* Open a node file or end with an error that says what is wrong with it. */
void simctl_open(struct sim *s, const char *path);

/* Index of the device that `text` names (index or UUID) or UINT32_MAX for "all"; ends with an error for none.
 */
uint32_t simctl_device(const struct sim *s, const char *text);

#endif
