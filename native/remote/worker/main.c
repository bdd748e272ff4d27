/*
 * calabash-worker FD: serves the one program at the other end of a connected socket, then ends. It is a process of its
 * own, in the slice of that program: what it holds, and what becomes of it, concerns nobody else.
 */
#include "remote/worker/driver.h"
#include "remote/worker/session.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    char *end = NULL;
    long fd = argc == 2 ? strtol(argv[1], &end, 10) : -1;
    if (fd < 0 || fd > 1 << 20 || *end) {
        fprintf(stderr, "usage: calabash-worker FD\n");
        return 2;
    }
    return cb_driver_open() ? cb_serve((int)fd) : 1;
}
