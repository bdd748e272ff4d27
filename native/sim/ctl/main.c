/*
 * Entry of calabash-simctl, which creates, shows, resets and removes simulated nodes (state.h) and injects
 * faults.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/ctl/compute_instance.h"
#include "sim/ctl/create.h"
#include "sim/ctl/inject.h"
#include "sim/ctl/open.h"
#include "sim/ctl/reset.h"
#include "sim/ctl/root_tree.h"
#include "sim/ctl/show.h"
#include "sim/ctl/show_json.h"
#include "sim/node/device_build.h"
#include "sim/node/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static void node_destroy(const char *path, int force)
{
    struct sim s;
    uint64_t magic = 0;
    uint32_t live = 0;

    if (force) {
        /* A damaged node may be removed, another program's file must not be. */
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
    simctl_remove_root(path);
    printf("destroyed %s\n", path);
}

static _Noreturn void exit_with_usage(int code)
{
    fprintf(code == EXIT_OK ? stdout : stderr,
            "usage: calabash-simctl create NODE --gpus 4xA100-40GB,2xT4 [--name NAME] [--seed N]\n"
            "       calabash-simctl root NODE\n"
            "       calabash-simctl show NODE [--all|--json]\n"
            "       calabash-simctl inject NODE --gpu N|UUID|all WHAT [VALUE]\n"
            "       calabash-simctl reset NODE --gpu N|UUID|all\n"
            "       calabash-simctl unserved NODE\n"
            "       calabash-simctl reboot NODE\n"
            "       calabash-simctl destroy NODE [--force]\n"
            "       calabash-simctl models\n"
            "NODE is a name, as `calabash sim` knows it, or the path of a state file\n"
            "faults: %s\n"
            "models: %s\n",
            simctl_inject_help, card_keys());
    exit(code);
}

struct arguments {
    const char *gpus, *gpu, *name, *seed;
    int all, json, force;
    char **words;
    int count;
};

static struct arguments arguments_parse(int argc, char **argv)
{
    static const struct option options[] = {{"gpus", required_argument, NULL, 'g'},
                                            {"gpu", required_argument, NULL, 'u'},
                                            {"name", required_argument, NULL, 'n'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"all", no_argument, NULL, 'a'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"force", no_argument, NULL, 'f'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
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
        else if (c == 'a')
            a.all = 1;
        else if (c == 'j')
            a.json = 1;
        else if (c == 'f')
            a.force = 1;
        else
            exit_with_usage(c == 'h' ? EXIT_OK : EXIT_USAGE);
    }
    a.words = argv + optind;
    a.count = argc - optind;
    return a;
}

static void node_inject(const char *path, const struct arguments *a)
{
    struct sim s;

    simctl_open(&s, path);
    if (strncasecmp(a->gpu, "MIG-", 4) == 0) {
        simctl_inject_part(&s, a->gpu, a->words[2], a->count > 3 ? a->words[3] : NULL);
        return;
    }
    uint32_t device = simctl_device(&s, a->gpu);

    for (uint32_t i = 0; i < s.node->device_count; i++)
        if (device == UINT32_MAX || device == i)
            simctl_inject(&s, i, a->words[2], a->count > 3 ? a->words[3] : NULL);
}

static void node_reset(const char *path, const struct arguments *a)
{
    struct sim s;

    simctl_open(&s, path);
    uint32_t device = simctl_device(&s, a->gpu);

    for (uint32_t i = 0; i < s.node->device_count; i++)
        if (device == UINT32_MAX || device == i) simctl_reset(&s, i);
}

static void models_list(void)
{
    for (size_t i = 0; i < card_count; i++)
        printf("%-11s %-24s %7" PRIu64 " MiB %4u SMs%s\n", cards[i].key, cards[i].name,
               cards[i].memory_bytes / CARD_MIB, cards[i].sm_count, cards[i].mig_count > 0 ? "  MIG" : "");
}

int main(int argc, char **argv)
{
    struct arguments a = arguments_parse(argc, argv);
    struct sim s;

    simctl_set_traps();
    if (a.count == 1 && strcmp(a.words[0], "models") == 0) {
        models_list();
        return EXIT_OK;
    }
    if (a.count < 2) exit_with_usage(EXIT_USAGE);
    const char *verb = a.words[0], *path = simctl_path(a.words[1]);

    if (strcmp(verb, "create") == 0 && a.count == 2 && a.gpus != NULL) {
        simctl_create(path, a.gpus, a.name, a.seed);
    } else if (strcmp(verb, "show") == 0 && a.count == 2) {
        simctl_open(&s, path);
        return a.json ? simctl_show_json(&s) : simctl_show(&s, a.all);
    } else if (strcmp(verb, "root") == 0 && a.count == 2) {
        simctl_open(&s, path);
        return simctl_root(&s);
    } else if (strcmp(verb, "unserved") == 0 && a.count == 2) {
        simctl_open(&s, path);
        return simctl_unserved(&s);
    } else if (strcmp(verb, "inject") == 0 && a.gpu != NULL && (a.count == 3 || a.count == 4)) {
        node_inject(path, &a);
    } else if (strcmp(verb, "reboot") == 0 && a.count == 2) {
        simctl_reboot(path);
    } else if (strcmp(verb, "reset") == 0 && a.gpu != NULL && a.count == 2) {
        node_reset(path, &a);
    } else if (strcmp(verb, "destroy") == 0 && a.count == 2) {
        node_destroy(path, a.force);
    } else {
        exit_with_usage(EXIT_USAGE);
    }
    return EXIT_OK;
}
