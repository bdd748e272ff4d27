/*
 * nvidia-smi compute-policy: the time-slice class of contexts that share a card. Of the driver's tool this is
 * the part without a counterpart in NVML.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/device_build.h"
#include "sim/node/state.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_OK = 0, EXIT_ARGUMENT = 2, EXIT_PERMISSION = 4, EXIT_NO_DEVICE = 6, EXIT_NO_DRIVER = 9 };

static const char *const words[SIM_TIMESLICES] = {"Default", "Short", "Medium", "Long"};

static const char usage[] = "    Compute Policy -- Control and list compute policies.\n\n"
                            "    Usage: nvidia-smi compute-policy [options]\n\n"
                            "    Options include:\n"
                            "    [-i | --id]: GPU device ID's. Provide comma\n"
                            "                 separated values for more than one device\n\n"
                            "    [-l | --list]: List all compute policies\n\n"
                            "    [ | --set-timeslice]: Set timeslice config for a GPU:\n"
                            "                          0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG\n\n"
                            "    [-h | --help]: Display help information\n";

static _Noreturn void exit_with_message(int code, const char *message)
{
    puts(message);
    exit(code);
}

static bool device_matches(const struct sim_node *n, uint32_t device, const char *text, size_t length)
{
    char number[12];
    const char *uuid = n->device[device].profile.uuid;

    snprintf(number, sizeof number, "%u", device);
    return (strlen(uuid) == length && strncmp(uuid, text, length) == 0) ||
           (strlen(number) == length && strncmp(number, text, length) == 0);
}

/* Bit i: device i is in the list; without a list all devices. */
static uint32_t devices_chosen(const struct sim_node *n, const char *list)
{
    uint32_t found = list ? 0 : (uint32_t)((1ull << n->device_count) - 1);

    while (list && *list) {
        size_t length = strcspn(list, ",");
        uint32_t before = found;
        for (uint32_t i = 0; i < n->device_count; i++)
            if (device_matches(n, i, list, length)) found |= 1u << i;
        if (found == before) exit_with_message(EXIT_NO_DEVICE, "No devices were found");
        list += length + (list[length] == ',');
    }
    return found;
}

static uint32_t timeslice_parse(const char *text)
{
    if (strlen(text) == 1 && strspn(text, "0123") == 1) return (uint32_t)(text[0] - '0');
    exit_with_message(EXIT_ARGUMENT, "Invalid timeslice value: 0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG");
}

static void list_policies(const struct sim_node *n, uint32_t devices)
{
    puts("GPU compute policies:");
    for (uint32_t i = 0; i < n->device_count; i++)
        if (devices >> i & 1)
            printf("    GPU %u: %s  Timeslice: %s\n", i, n->device[i].profile.uuid,
                   words[n->device[i].timeslice % SIM_TIMESLICES]);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"id", required_argument, NULL, 'i'},
                                            {"list", no_argument, NULL, 'l'},
                                            {"set-timeslice", required_argument, NULL, 't'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    const char *path = getenv("CALABASH_SIM"), *ids = NULL, *wanted = NULL;
    bool list = false;
    struct sim s;

    for (int c; (c = getopt_long(argc, argv, "i:lh", options, NULL)) != -1;) {
        if (c == 'i')
            ids = optarg;
        else if (c == 'l')
            list = true;
        else if (c == 't')
            wanted = optarg;
        else {
            fputs(usage, stdout);
            return c == 'h' ? EXIT_OK : EXIT_ARGUMENT;
        }
    }
    if (optind + 1 != argc || strcmp(argv[optind], "compute-policy") != 0 || list == (wanted != NULL)) {
        fputs(usage, stdout);
        return EXIT_ARGUMENT;
    }
    if (!path || sim_open(&s, path) != 0 || card_check_node(s.node))
        exit_with_message(EXIT_NO_DRIVER,
                          "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.");
    uint32_t devices = devices_chosen(s.node, ids);
    if (list) {
        list_policies(s.node, devices);
        return EXIT_OK;
    }
    uint32_t class = timeslice_parse(wanted);
    if (geteuid() != 0)
        exit_with_message(EXIT_PERMISSION, "Unable to set timeslice config: Insufficient Permissions");
    for (uint32_t i = 0; i < s.node->device_count; i++) {
        if (!(devices >> i & 1)) continue;
        sim_lock_device(&s, i);
        s.node->device[i].timeslice = class;
        sim_unlock_device(&s, i);
    }
    puts("All done.");
    return EXIT_OK;
}
