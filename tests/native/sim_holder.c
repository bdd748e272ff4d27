/*
 * A process of a simulated node, without CUDA: holds memory of a card and keeps it busy, until its input
 * ends. usage: sim_holder DEVICE BYTES BUSY_MS     (node from CALABASH_SIM)
 */
#include "sim/node/state.h"
#include "sim/node/charge.h"
#include "sim/node/queue.h"
#include "sim/node/slot.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct sim s;
    char byte;

    if (argc != 4 || sim_open(&s, NULL) != 0 || sim_attach(&s) != 0) return 1;
    uint32_t device = (uint32_t)strtoul(argv[1], NULL, 10);
    uint64_t bytes = strtoull(argv[2], NULL, 10), busy_ms = strtoull(argv[3], NULL, 10);

    if (!sim_charge(&s, device, s.node->device[device].profile.context_bytes, true)) return 2;
    if (bytes > 0 && !sim_charge(&s, device, bytes, false)) return 3;
    int queue = queue_open(&s, device, 0);

    if (queue < 0) return 4;
    struct queue_work work = {.kind = SIM_WORK_KERNEL, .duration_ns = busy_ms * 1000000};
    if (busy_ms > 0) queue_post(&s, queue, &work);
    puts("ready");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    queue_close(&s, queue);
    sim_detach(&s);
    return 0;
}
