/* The log files of the service. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/mps/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define LOG_DIRECTORY "/var/log/nvidia-mps"
#define PATH_BYTES    4096

static int log_fd = -1;
static const char *log_who = "";

void log_open(const char *file, const char *who)
{
    char path[PATH_BYTES];
    const char *directory = getenv("CUDA_MPS_LOG_DIRECTORY");
    if (!directory || !*directory) directory = LOG_DIRECTORY;
    log_who = who;
    mkdir(directory, 0755);
    if (snprintf(path, sizeof path, "%s/%s", directory, file) >= (int)sizeof path) return;
    log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
}

void log_line(const char *format, ...)
{
    char text[1024];
    struct timeval now;
    struct tm t;
    va_list args;
    if (log_fd < 0) return;
    gettimeofday(&now, NULL);
    localtime_r(&now.tv_sec, &t);
    int used = (int)strftime(text, sizeof text, "[%Y-%m-%d %H:%M:%S", &t);
    used += snprintf(text + used, sizeof text - (size_t)used, ".%03d %s %d] ", (int)(now.tv_usec / 1000),
                     log_who, (int)getpid());
    va_start(args, format);
    int more = vsnprintf(text + used, sizeof text - (size_t)used - 1, format, args);
    va_end(args);
    if (more < 0) return;
    used = used + more < (int)sizeof text - 1 ? used + more : (int)sizeof text - 2;
    text[used++] = '\n';
    if (write(log_fd, text, (size_t)used) != used) return; /* a full disk loses lines, as with the real one */
}
