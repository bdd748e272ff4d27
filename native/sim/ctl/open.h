/* Opening of a node by the tool, and errors. */
#ifndef CALABASH_SIMCTL_OPEN_H
#define CALABASH_SIMCTL_OPEN_H

#include "sim/node/state.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Print "error: ..." and, if not NULL, "hint: ..."; end with EXIT_FAILED. */
_Noreturn void simctl_fail(const char *hint, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* From now on a fault or a long wait ends the process with an error line. */
void simctl_set_traps(void);

/* Set that line, and the unfinished files that are removed then. */
void simctl_trap(const char *message, const char *first, const char *second);

/*
 * The state file of a NODE argument: a name is looked up below the home directory, as `calabash sim` does; what
 * cannot be a name (it contains a '/' or a '.') is a path.
 */
const char *simctl_path(const char *node);

/* Open a node file or end with an error. */
void simctl_open(struct sim *s, const char *path);

/*
 * Index of the device that `text` names (index or UUID), or UINT32_MAX for "all"; ends with an error if there
 * is none.
 */
uint32_t simctl_device(const struct sim *s, const char *text);

#endif
