/*
 * Opening of a node by the tool, by name or path, with a readable error on failure.
 *
 * A node file may be damaged or not be one at all. What can be checked is checked; for what cannot (a lock word
 * that nobody will ever release, a page for which the disk is full) the process sets itself a deadline and
 * handles its own faults, so that the user always gets an error line instead of a hang or a crash.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/ctl/open.h"

#include "sim/node/device_build.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEADLINE_S 5

static const char *trap_message = "error: the node file is damaged\n";
static char half_made[2][4096];

_Noreturn void simctl_fail(const char *hint, const char *format, ...)
{
    va_list args;

    fflush(stdout);
    fputs("error: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    if (hint != NULL) fprintf(stderr, "hint: %s\n", hint);
    exit(EXIT_FAILED);
}

static void trap_handle(int number)
{
    (void)number;
    if (write(STDERR_FILENO, trap_message, strlen(trap_message)) < 0) _exit(EXIT_FAILED);
    for (int i = 0; i < 2; i++)
        if (half_made[i][0] != '\0') unlink(half_made[i]);
    _exit(EXIT_FAILED);
}

void simctl_set_traps(void)
{
    const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGALRM};
    struct sigaction action = {.sa_handler = trap_handle};

    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &action, NULL);
    alarm(DEADLINE_S);
}

void simctl_open(struct sim *s, const char *path)
{
    const char *wrong;
    int result = sim_open(s, path);

    if (result == -ENOENT)
        simctl_fail("make one with: calabash-simctl create PATH --gpus 2xA100-40GB", "no node at %s", path);
    if (result == -EPROTO)
        simctl_fail("nodes are made by: calabash-simctl create", "%s is not a node file of version %u", path,
                    SIM_VERSION);
    if (result != 0) simctl_fail(NULL, "cannot open %s: %s", path, strerror(-result));
    wrong = card_check_node(s->node);
    if (wrong != NULL)
        simctl_fail("remove it and create it again", "the node file %s is damaged: %s", path, wrong);
}

uint32_t simctl_device(const struct sim *s, const char *text)
{
    char *end;
    unsigned long index;

    if (strcmp(text, "all") == 0) return UINT32_MAX;
    for (uint32_t i = 0; i < s->node->device_count; i++)
        if (strcmp(text, s->node->device[i].profile.uuid) == 0) return i;
    index = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || index >= s->node->device_count)
        simctl_fail("give an index, a UUID or all", "no GPU %s: the node has %u", text,
                    s->node->device_count);
    return (uint32_t)index;
}

void simctl_trap(const char *message, const char *first, const char *second)
{
    trap_message = message;
    snprintf(half_made[0], sizeof half_made[0], "%s", first);
    snprintf(half_made[1], sizeof half_made[1], "%s", second);
}

static bool text_is_name(const char *text)
{
    size_t length = strlen(text);

    if (length == 0 || length > 63 || text[0] == '-' || text[length - 1] == '-') return false;
    return strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

const char *simctl_path(const char *node)
{
    static char path[4096];
    const char *home = getenv("CALABASH_HOME"), *below = "";

    if (!text_is_name(node)) return node;
    if (home == NULL || *home == '\0') {
        home = geteuid() == 0 ? "/var/lib/calabash" : getenv("HOME");
        if (geteuid() != 0) below = "/.local/share/calabash";
    }
    if (home == NULL ||
        snprintf(path, sizeof path, "%s%s/sim/%s/node.state", home, below, node) >= (int)sizeof path)
        simctl_fail("set CALABASH_HOME, or give a path with a '/'", "there is no home to look for node %s in",
                    node);
    return path;
}
