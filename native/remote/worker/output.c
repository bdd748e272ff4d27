#define _GNU_SOURCE
#include "remote/worker/output.h"

#include "remote/worker/outbox.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART_BYTES (16u << 10)
#define KEPT_BYTES (1 << 20) /* the file is truncated after so much of it was sent */

static struct {
    pthread_mutex_t lock;
    off_t sent;
} output = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool cb_output_open(void)
{
    int fd = memfd_create("calabash-output", MFD_CLOEXEC);
    bool ok = fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0;
    if (!ok) perror("worker: cannot create the file for kernel output");
    if (fd >= 0 && fd != STDOUT_FILENO) close(fd);
    return ok;
}

void cb_output_send(void)
{
    char part[PART_BYTES];
    pthread_mutex_lock(&output.lock);
    fflush(stdout);
    off_t written = lseek(STDOUT_FILENO, 0, SEEK_CUR);
    while (output.sent < written) {
        size_t wanted = written - output.sent < PART_BYTES ? (size_t)(written - output.sent) : PART_BYTES;
        ssize_t got = pread(STDOUT_FILENO, part, wanted, output.sent);
        if (got <= 0) break;
        uint64_t bytes = (uint64_t)got;
        memset(part + bytes, 0, CB_WORDS(bytes) - bytes);
        cb_outbox_notice(&(struct cb_frame){0}, CB_OUTPUT, 0, CUDA_SUCCESS, &bytes, 1, part, CB_WORDS(bytes));
        output.sent += got;
    }
    if (output.sent >= KEPT_BYTES && output.sent == lseek(STDOUT_FILENO, 0, SEEK_CUR) &&
        ftruncate(STDOUT_FILENO, 0) == 0)
        output.sent = lseek(STDOUT_FILENO, 0, SEEK_SET);
    pthread_mutex_unlock(&output.lock);
}
