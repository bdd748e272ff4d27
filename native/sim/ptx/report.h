/* What the compiler of PTX has to say, in the words of the real one. */
#ifndef CALABASH_SIM_PTX_REPORT_H
#define CALABASH_SIM_PTX_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REPORT_BYTES 4096

struct report {
    char errors[REPORT_BYTES]; /* "ptxas application ptx input, line 7; error   : ..." */
    char notes[REPORT_BYTES];  /* what is accepted and cannot be run */
    size_t error_length, note_length;
    uint32_t error_count;
    bool version_unsupported; /* a newer PTX than is known */
};

__attribute__((format(printf, 3, 4))) void report_error(struct report *r, uint32_t line, const char *format,
                                                        ...);
__attribute__((format(printf, 3, 4))) void report_note(struct report *r, uint32_t line, const char *format,
                                                       ...);

#endif
