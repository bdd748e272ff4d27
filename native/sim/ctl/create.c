/* Creation of a node from a list of cards. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/ctl/create.h"

#include "sim/ctl/open.h"
#include "sim/node/device_build.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Parse one item of a list, "4xA100-40GB" or "T4", and append its cards. */
static uint32_t cards_append(const struct card **list, uint32_t count, const char *text)
{
    const char *model = text;
    char *end;
    unsigned long copies = 1;

    if (*text >= '0' && *text <= '9') {
        copies = strtoul(text, &end, 10);
        if (*end != 'x' && *end != 'X' && *end != '*')
            simctl_fail("write NxMODEL, like 4xA100-40GB", "GPU list part '%s' is not understood", text);
        model = end + 1;
    }
    const struct card *card = card_find(model);

    if (card == NULL) {
        fprintf(stderr, "error: unknown GPU model '%s'\nhint: known models: %s\n", model, card_keys());
        exit(EXIT_FAILED);
    }
    if (copies == 0 || copies > SIM_DEVICES_MAX - count)
        simctl_fail(NULL, "a node has 1 to %u GPUs, '%s' makes it %lu", SIM_DEVICES_MAX, text,
                    count + copies);
    for (unsigned long i = 0; i < copies; i++)
        list[count++] = card;
    return count;
}

static uint32_t cards_parse(const struct card **list, const char *text)
{
    char copy[512];
    uint32_t count = 0;

    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy)
        simctl_fail(NULL, "the GPU list is too long");
    for (char *rest = copy, *part; (part = strsep(&rest, ",")) != NULL;) {
        part += strspn(part, " ");
        for (size_t length = strlen(part); length > 0 && part[length - 1] == ' '; length--)
            part[length - 1] = '\0';
        if (*part == '\0')
            simctl_fail("write it like 4xA100-40GB,2xT4", "the GPU list '%s' has an empty part", text);
        count = cards_append(list, count, part);
    }
    return count;
}

/* The node's name: the given one, else the directory that holds the file. */
static void node_name(char *out, size_t size, const char *given, const char *path)
{
    char copy[4096];
    const char *base = "sim";

    snprintf(copy, sizeof copy, "%s", path);
    char *slash = strrchr(copy, '/');

    if (slash != NULL) {
        *slash = '\0';
        base = strrchr(copy, '/') != NULL ? strrchr(copy, '/') + 1 : copy;
    }
    snprintf(out, size, "%.60s", given != NULL ? given : *base != '\0' ? base : "sim");
}

void simctl_create(const char *path, const char *gpus, const char *name, const char *seed)
{
    static struct sim_device devices[SIM_DEVICES_MAX];
    const struct card *list[SIM_DEVICES_MAX];
    struct card_random random;
    char shown[64];
    char temporary[4096], half_made[4096]; /* our own file, and the one from which sim_create writes it */
    char *end = NULL;

    uint32_t count = cards_parse(list, gpus);

    if (access(path, F_OK) == 0)
        simctl_fail("remove it first: calabash-simctl destroy PATH", "%s exists already", path);
    if (seed != NULL) {
        random.state = strtoull(seed, &end, 10);
        if (*seed < '0' || *seed > '9' || *end != '\0')
            simctl_fail("give a whole number", "seed '%s' is not a number", seed);
    } else if (getrandom(&random.state, sizeof random.state, 0) != sizeof random.state) {
        simctl_fail(NULL, "no random numbers: %s", strerror(errno));
    }
    card_build(devices, list, count, &random);
    node_name(shown, sizeof shown, name, path);

    /*
     * Built under another name and then linked: the process that links first has made the node, another one
     * gets an error.
     */
    if (snprintf(temporary, sizeof temporary, "%s.new.%d", path, (int)getpid()) >= (int)sizeof temporary ||
        snprintf(half_made, sizeof half_made, "%s.%d", temporary, (int)getpid()) >= (int)sizeof half_made)
        simctl_fail(NULL, "the path is too long");
    simctl_trap("error: the disk is full\n", temporary, half_made);
    int result = sim_create(temporary, shown, devices, count);

    /* As a driver's device nodes: a user who can reach the file may use the cards. */
    if (result == 0 && (chmod(temporary, 0666) != 0 || link(temporary, path) != 0)) result = -errno;
    unlink(temporary);
    if (result == -EEXIST)
        simctl_fail("remove it first: calabash-simctl destroy PATH", "%s exists already", path);
    if (result == -ENOENT)
        simctl_fail("make its directory first", "cannot create %s: no such directory", path);
    if (result != 0) simctl_fail(NULL, "cannot create %s: %s", path, strerror(-result));
    printf("created %s with %u GPU%s\n", path, count, count == 1 ? "" : "s");
}
