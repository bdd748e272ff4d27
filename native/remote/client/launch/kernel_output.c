#include "remote/client/launch/kernel_output.h"

#include "remote/client/connection/answers.h"

#include <stdio.h>

static bool output_notice_take(const struct cb_frame *f)
{
    uint64_t result, bytes;
    char part[1024];
    if (f->bytes < sizeof result + sizeof bytes || !cb_notice_receive(&result, sizeof result) ||
        !cb_notice_receive(&bytes, sizeof bytes))
        return false;
    uint64_t left = f->bytes - sizeof result - sizeof bytes;
    if (bytes > left || CB_WORDS(bytes) != left) return false;
    while (left) {
        size_t now = left < sizeof part ? left : sizeof part;
        if (!cb_notice_receive(part, now)) return false;
        size_t text = bytes < now ? bytes : now; /* the rest fills the last word */
        fwrite(part, 1, text, stdout);
        bytes -= text;
        left -= now;
    }
    fflush(stdout);
    return true;
}

void cb_output_begin(void)
{
    cb_notice_register(CB_OUTPUT, output_notice_take);
}
