/* Compiler messages, worded as those of the real compiler. */
#ifndef CALABASH_SIM_PTX_REPORT_H
#define CALABASH_SIM_PTX_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REPORT_BYTES 4096

struct report {
    char errors[REPORT_BYTES]; /* "ptxas application ptx input, line 7; error   : ..." */
    char notes[REPORT_BYTES];  /* accepted code that cannot be run */
    size_t error_length, note_length;
    uint32_t error_count;
    bool version_unsupported; /* the text has a newer PTX version than supported */
};

__attribute__((format(printf, 3, 4))) void report_error(struct report *r, uint32_t line, const char *format,
                                                        ...);
__attribute__((format(printf, 3, 4))) void report_note(struct report *r, uint32_t line, const char *format,
                                                       ...);

#endif
