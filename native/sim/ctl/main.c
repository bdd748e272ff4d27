/*
 * calabash-simctl: makes, shows, breaks and removes simulated nodes (state.h).
 *
 * A node file may be damaged or not be one at all. What can be checked is checked; for what cannot (a lock
 * word that nobody will ever release, a page that the disk has no room for) the process sets itself a
 * deadline and traps its own faults, so that the user always reads one line instead of waiting or seeing a
 * crash.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/ctl/ctl.h"
#include "sim/node/profiles.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEADLINE_S 5

static const char *trap_message = "error: the node file is damaged\n";
static char temporary[4096],
    half_made[4096]; /* what a trap removes: ours, and what sim_create writes it from */

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

static void on_trap(int number)
{
    (void)number;
    if (write(STDERR_FILENO, trap_message, strlen(trap_message)) < 0) _exit(EXIT_FAILED);
    if (temporary[0] != '\0') unlink(temporary);
    if (half_made[0] != '\0') unlink(half_made);
    _exit(EXIT_FAILED);
}

static void set_traps(void)
{
    const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGALRM};
    struct sigaction action = {.sa_handler = on_trap};

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

/* Reads one part of a list, "4xA100-40GB" or "T4", and appends its cards. */
static uint32_t add_cards(const struct card **list, uint32_t count, const char *text)
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

static uint32_t parse_cards(const struct card **list, const char *text)
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
        count = add_cards(list, count, part);
    }
    return count;
}

/* The node's own name: what was given, else the directory that holds the file. */
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

static void create(const char *path, const char *gpus, const char *name, const char *seed)
{
    static struct sim_device devices[SIM_DEVICES_MAX];
    const struct card *list[SIM_DEVICES_MAX];
    struct card_random random;
    char shown[64];
    char *end = NULL;

    uint32_t count = parse_cards(list, gpus);

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

    /* Built beside its place and then linked: whoever links first has made the node, the other is told. */
    if (snprintf(temporary, sizeof temporary, "%s.new.%d", path, (int)getpid()) >= (int)sizeof temporary ||
        snprintf(half_made, sizeof half_made, "%s.%d", temporary, (int)getpid()) >= (int)sizeof half_made)
        simctl_fail(NULL, "the path is too long");
    trap_message = "error: the disk is full\n";
    int result = sim_create(temporary, shown, devices, count);

    /* As a driver's device nodes: who may reach the file may use the cards. */
    if (result == 0 && (chmod(temporary, 0666) != 0 || link(temporary, path) != 0)) result = -errno;
    unlink(temporary);
    if (result == -EEXIST)
        simctl_fail("remove it first: calabash-simctl destroy PATH", "%s exists already", path);
    if (result == -ENOENT)
        simctl_fail("make its directory first", "cannot create %s: no such directory", path);
    if (result != 0) simctl_fail(NULL, "cannot create %s: %s", path, strerror(-result));
    printf("created %s with %u GPU%s\n", path, count, count == 1 ? "" : "s");
}

static void destroy(const char *path, int force)
{
    struct sim s;
    uint64_t magic = 0;
    uint32_t live = 0;

    if (force) {
        /* A damaged node may go, another program's file may not. */
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

        if (fd < 0) simctl_fail(NULL, "cannot open %s: %s", path, strerror(errno));
        if (read(fd, &magic, sizeof magic) != sizeof magic || magic != SIM_MAGIC)
            simctl_fail("if it is to go, remove it by hand", "%s is not a node file", path);
        close(fd);
    } else {
        simctl_open(&s, path);
        sim_sweep(&s, 0);
        for (uint32_t i = 0; i < sim_procs_used(s.node); i++)
            live += s.node->proc[i].state == SIM_SLOT_LIVE;
        if (live > 0)
            simctl_fail("end them, or use --force", "%u process%s still use%s this node", live,
                        live == 1 ? "" : "es", live == 1 ? "s" : "");
    }
    if (unlink(path) != 0) simctl_fail(NULL, "cannot remove %s: %s", path, strerror(errno));
    printf("destroyed %s\n", path);
}

static _Noreturn void usage(int code)
{
    fprintf(code == EXIT_OK ? stdout : stderr,
            "usage: calabash-simctl create PATH --gpus 4xA100-40GB,2xT4 [--name NAME] [--seed N]\n"
            "       calabash-simctl show PATH [--json]\n"
            "       calabash-simctl inject PATH --gpu N|UUID|all WHAT [VALUE]\n"
            "       calabash-simctl unserved PATH\n"
            "       calabash-simctl destroy PATH [--force]\n"
            "       calabash-simctl models\n"
            "faults: %s\n"
            "models: %s\n",
            simctl_inject_help, card_keys());
    exit(code);
}

struct arguments {
    const char *gpus, *gpu, *name, *seed;
    int json, force;
    char **words;
    int count;
};

static struct arguments parse(int argc, char **argv)
{
    static const struct option options[] = {
        {"gpus", required_argument, NULL, 'g'}, {"gpu", required_argument, NULL, 'u'},
        {"name", required_argument, NULL, 'n'}, {"seed", required_argument, NULL, 's'},
        {"json", no_argument, NULL, 'j'},       {"force", no_argument, NULL, 'f'},
        {"help", no_argument, NULL, 'h'},       {NULL, 0, NULL, 0}};
    struct arguments a = {0};

    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (c == 'g')
            a.gpus = optarg;
        else if (c == 'u')
            a.gpu = optarg;
        else if (c == 'n')
            a.name = optarg;
        else if (c == 's')
            a.seed = optarg;
        else if (c == 'j')
            a.json = 1;
        else if (c == 'f')
            a.force = 1;
        else
            usage(c == 'h' ? EXIT_OK : EXIT_USAGE);
    }
    a.words = argv + optind;
    a.count = argc - optind;
    return a;
}

static void inject(const char *path, const struct arguments *a)
{
    struct sim s;

    simctl_open(&s, path);
    uint32_t device = simctl_device(&s, a->gpu);

    for (uint32_t i = 0; i < s.node->device_count; i++)
        if (device == UINT32_MAX || device == i)
            simctl_inject(&s, i, a->words[2], a->count > 3 ? a->words[3] : NULL);
}

static void list_models(void)
{
    for (size_t i = 0; i < card_count; i++)
        printf("%-11s %-24s %7" PRIu64 " MiB %4u SMs%s\n", cards[i].key, cards[i].name,
               cards[i].memory_bytes / CARD_MIB, cards[i].sm_count, cards[i].mig_count > 0 ? "  MIG" : "");
}

int main(int argc, char **argv)
{
    struct arguments a = parse(argc, argv);
    struct sim s;

    set_traps();
    if (a.count == 1 && strcmp(a.words[0], "models") == 0) {
        list_models();
        return EXIT_OK;
    }
    if (a.count < 2) usage(EXIT_USAGE);
    const char *verb = a.words[0], *path = a.words[1];

    if (strcmp(verb, "create") == 0 && a.count == 2 && a.gpus != NULL) {
        create(path, a.gpus, a.name, a.seed);
    } else if (strcmp(verb, "show") == 0 && a.count == 2) {
        simctl_open(&s, path);
        return simctl_show(&s, a.json);
    } else if (strcmp(verb, "unserved") == 0 && a.count == 2) {
        simctl_open(&s, path);
        return simctl_unserved(&s);
    } else if (strcmp(verb, "inject") == 0 && a.gpu != NULL && (a.count == 3 || a.count == 4)) {
        inject(path, &a);
    } else if (strcmp(verb, "destroy") == 0 && a.count == 2) {
        destroy(path, a.force);
    } else {
        usage(EXIT_USAGE);
    }
    return EXIT_OK;
}
