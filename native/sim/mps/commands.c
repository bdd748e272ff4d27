/* Commands of the control daemon, one row of a table each. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/mps/commands.h"

#include "sim/mps/log.h"
#include "sim/mps/servers.h"
#include "sim/mps/waiters.h"
#include "sim/node/mps.h"
#include "sim/node/slot.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 6

struct call {
    struct daemon *daemon;
    const char *word[WORDS_MAX]; /* after the command */
    int count;
    int fd;
    FILE *out;
};

typedef bool (*command)(struct call *c);

static bool number_parse(const char *text, unsigned long most, unsigned long *out)
{
    char *end;
    if (*text < '0' || *text > '9') return false;
    *out = strtoul(text, &end, 10);
    return !*end && *out <= most;
}

/* The server that a word names by its pid; prints an error if there is none. */
static struct server *server_argument(struct call *c, int word)
{
    unsigned long pid = 0;
    struct server *v = number_parse(c->word[word], INT32_MAX, &pid) ? server_of(c->daemon, (pid_t)pid) : NULL;
    if (!v || !server_state(c->daemon, v)) {
        fprintf(c->out, "Failed to find server %s\n", c->word[word]);
        return NULL;
    }
    return v;
}

static bool percentage_parse(struct call *c, const char *text, uint32_t *permille)
{
    char *end;
    double percent = strtod(text, &end);
    bool good = end != text && !*end && percent > 0.0 && percent <= 100.0;
    if (good)
        *permille = (uint32_t)(percent * 10.0 + 0.5) ? (uint32_t)(percent * 10.0 + 0.5) : 1;
    else
        fprintf(c->out, "Invalid percentage %s: above 0 and up to 100\n", text);
    return good;
}

static void print_percentage(struct call *c, uint32_t permille)
{
    fprintf(c->out, "%u.%u\n", permille / 10, permille % 10);
}

static void print_limit(struct call *c, uint64_t bytes)
{
    if (bytes == 0)
        fprintf(c->out, "unlimited\n");
    else if (bytes % (1ull << 30) == 0)
        fprintf(c->out, "%lluG\n", (unsigned long long)(bytes >> 30));
    else
        fprintf(c->out, "%lluM\n", (unsigned long long)(bytes >> 20));
}

static bool get_server_list(struct call *c)
{
    for (uint32_t i = 0; i < SERVERS_MAX; i++) {
        if (server_state(c->daemon, &c->daemon->server[i]))
            fprintf(c->out, "%d\n", (int)c->daemon->server[i].pid);
    }
    return true;
}

static bool get_server_status(struct call *c)
{
    static const char *const names[] = {"INITIALIZING", "ACTIVE", "FAULT"};
    struct server *v = server_argument(c, 0);
    if (v) fprintf(c->out, "%s\n", names[server_state(c->daemon, v)->status % 3]);
    return true;
}

static bool start_server(struct call *c)
{
    unsigned long uid;
    if (strcmp(c->word[0], "-uid") != 0 || !number_parse(c->word[1], INT32_MAX, &uid))
        fprintf(c->out, "Usage: start_server -uid <user id>\n");
    else if (!server_for(c->daemon, (uint32_t)uid) && !server_start(c->daemon, (uint32_t)uid))
        fprintf(c->out, "Failed to start a server\n");
    return true;
}

static bool shutdown_server(struct call *c)
{
    struct server *v = server_argument(c, 0);
    bool force = c->count > 1 && strcmp(c->word[1], "-f") == 0;
    if (!v) return true;
    if (c->count > 1 && !force) {
        fprintf(c->out, "Unknown option %s\n", c->word[1]);
        return true;
    }
    v->leaving = true;
    if (force) server_stop(v, true);
    struct waiter w = {.fd = c->fd, .waits = WAITS_FOR_END_OF, .server = v->pid};
    return !waiter_add(c->daemon, &w);
}

static bool list_clients(struct call *c, const struct server *v)
{
    for (uint32_t i = 0; i < sim_procs_used(c->daemon->sim.node); i++) {
        if (sim_mps_is_client(c->daemon->sim.node, i, (uint32_t)v->slot))
            fprintf(c->out, "%d\n", (int)sim_process_pid(&c->daemon->sim, i));
    }
    return true;
}

static bool get_client_list(struct call *c)
{
    struct server *v = server_argument(c, 0);
    sim_sweep(&c->daemon->sim, 0);
    return v ? list_clients(c, v) : true;
}

static void list_devices(struct call *c, const struct server *v)
{
    struct sim_node *n = c->daemon->sim.node;
    const struct sim_mps *m = server_state(c->daemon, v);
    for (uint32_t k = 0; m && k < m->visible_count; k++) {
        uint32_t index = m->visible[k] % SIM_DEVICES_MAX;
        fprintf(c->out, "%s\n", n->device[index].profile.uuid);
        for (uint32_t i = 0; i < sim_procs_used(n); i++) {
            if (sim_mps_is_client(n, i, (uint32_t)v->slot) && n->proc[i].device[index].context_count)
                fprintf(c->out, "  %d\n", (int)sim_process_pid(&c->daemon->sim, i));
        }
    }
}

static bool get_device_client_list(struct call *c)
{
    struct server *v = c->count ? server_argument(c, 0) : NULL;
    sim_sweep(&c->daemon->sim, 0);
    if (v) list_devices(c, v);
    for (uint32_t i = 0; i < SERVERS_MAX && c->count == 0; i++)
        list_devices(c, &c->daemon->server[i]);
    return true;
}

static bool set_default_percentage(struct call *c)
{
    if (percentage_parse(c, c->word[0], &c->daemon->permille)) print_percentage(c, c->daemon->permille);
    return true;
}

static bool get_default_percentage(struct call *c)
{
    print_percentage(c, c->daemon->permille);
    return true;
}

static bool set_percentage(struct call *c)
{
    struct server *v = server_argument(c, 0);
    uint32_t permille;
    if (!v || !percentage_parse(c, c->word[1], &permille)) return true;
    __atomic_store_n(&server_state(c->daemon, v)->permille, permille, __ATOMIC_RELEASE);
    print_percentage(c, permille);
    return true;
}

static bool get_percentage(struct call *c)
{
    struct server *v = server_argument(c, 0);
    if (v) print_percentage(c, server_state(c->daemon, v)->permille);
    return true;
}

static struct limit *default_limit(struct daemon *d, const char *device, bool make)
{
    for (uint32_t i = 0; i < d->limit_count; i++) {
        if (strcmp(d->limit[i].device, device) != 0) continue;
        struct limit found = d->limit[i]; /* the last setting takes precedence, so it is kept last */
        memmove(&d->limit[i], &d->limit[i + 1], (d->limit_count - i - 1) * sizeof found);
        d->limit[d->limit_count - 1] = found;
        return &d->limit[d->limit_count - 1];
    }
    if (!make || d->limit_count == SIM_DEVICES_MAX) return NULL;
    struct limit *l = &d->limit[d->limit_count++];
    snprintf(l->device, sizeof l->device, "%s", device);
    return l;
}

static bool set_default_limit(struct call *c)
{
    if (!limit_bytes(c->word[1])) {
        fprintf(c->out, "Invalid limit %s: a whole number and G or M\n", c->word[1]);
        return true;
    }
    struct limit *l =
        strlen(c->word[0]) < sizeof l->device ? default_limit(c->daemon, c->word[0], true) : NULL;
    if (l)
        snprintf(l->value, sizeof l->value, "%s", c->word[1]);
    else
        fprintf(c->out, "Too many devices\n");
    return true;
}

static bool get_default_limit(struct call *c)
{
    const struct limit *l = default_limit(c->daemon, c->word[0], false);
    fprintf(c->out, "%s\n", l ? l->value : "unlimited");
    return true;
}

static struct sim_mps *server_and_device_arguments(struct call *c, int *device)
{
    struct server *v = server_argument(c, 0);
    struct sim_mps *m = v ? server_state(c->daemon, v) : NULL;
    *device = m ? device_named(c->daemon, m, c->word[1]) : -1;
    if (m && *device < 0) fprintf(c->out, "Failed to find device %s\n", c->word[1]);
    return *device < 0 ? NULL : m;
}

static bool set_limit(struct call *c)
{
    int device;
    struct sim_mps *m = server_and_device_arguments(c, &device);
    uint64_t bytes = limit_bytes(c->word[2]);
    if (m && bytes)
        __atomic_store_n(&m->memory_bytes[device], bytes, __ATOMIC_RELEASE);
    else if (m)
        fprintf(c->out, "Invalid limit %s: a whole number and G or M\n", c->word[2]);
    return true;
}

static bool get_limit(struct call *c)
{
    int device;
    const struct sim_mps *m = server_and_device_arguments(c, &device);
    if (m) print_limit(c, m->memory_bytes[device]);
    return true;
}

static bool terminate_client(struct call *c)
{
    struct sim_node *n = c->daemon->sim.node;
    struct server *v = server_argument(c, 0);
    unsigned long pid = 0;
    if (!v || !number_parse(c->word[1], INT32_MAX, &pid)) return true;
    for (uint32_t i = 0; i < sim_procs_used(n); i++) {
        if (!sim_mps_is_client(n, i, (uint32_t)v->slot) || sim_process_pid(&c->daemon->sim, i) != (pid_t)pid)
            continue;
        __atomic_store_n(&n->proc[i].mps.result, SIM_MPS_CLIENT_TERMINATED, __ATOMIC_RELEASE);
        log_line("Client %lu of server %d is terminated", pid, (int)v->pid);
        fprintf(c->out, "0\n");
        return true;
    }
    fprintf(c->out, "Failed to find client %s\n", c->word[1]);
    return true;
}

static void list_processes(struct call *c, const struct server *v)
{
    struct sim_node *n = c->daemon->sim.node;
    for (uint32_t i = 0; i < sim_procs_used(n); i++) {
        const struct sim_proc *p = &n->proc[i];
        if (!sim_mps_is_client(n, i, (uint32_t)v->slot)) continue;
        for (uint32_t k = 0; k < n->device_count; k++) {
            if (p->device[k].context_count)
                fprintf(c->out, "%-8d %-4u %-8d %.22s %-10llu %.200s\n",
                        (int)sim_process_pid(&c->daemon->sim, i), p->mps.id, (int)v->pid,
                        n->device[k].profile.uuid, (unsigned long long)p->pid_namespace, p->name);
        }
    }
}

static bool processes_list(struct call *c)
{
    struct server *v = c->count == 2 && strcmp(c->word[0], "-p") == 0 ? server_argument(c, 1) : NULL;
    if (c->count && !v) return true;
    sim_sweep(&c->daemon->sim, 0);
    fprintf(c->out, "PID      ID   SERVER   DEVICE                 NAMESPACE  COMMAND\n");
    for (uint32_t i = 0; i < SERVERS_MAX; i++) {
        struct server *one = &c->daemon->server[i];
        if (server_state(c->daemon, one) && (!v || v == one)) list_processes(c, one);
    }
    return true;
}

static bool set_priority(struct call *c)
{
    unsigned long priority;
    if (number_parse(c->word[0], 1, &priority))
        c->daemon->priority = (uint32_t)priority;
    else
        fprintf(c->out, "Invalid priority %s: 0 or 1\n", c->word[0]);
    return true;
}

static bool get_priority(struct call *c)
{
    fprintf(c->out, "%u [%s]\n", c->daemon->priority, c->daemon->priority ? "BELOW NORMAL" : "NORMAL");
    return true;
}

static bool device_query(struct call *c)
{
    struct server *v = c->count ? server_argument(c, 0) : NULL;
    struct sim_node *n = c->daemon->sim.node;
    fprintf(c->out, "SERVER,ORDINAL,UUID,NAME,SMS\n");
    for (uint32_t i = 0; i < SERVERS_MAX; i++) {
        struct server *one = &c->daemon->server[i];
        const struct sim_mps *m = server_state(c->daemon, one);
        for (uint32_t k = 0; m && (!v || v == one) && k < m->visible_count; k++) {
            const struct sim_profile *p = &n->device[m->visible[k] % SIM_DEVICES_MAX].profile;
            fprintf(c->out, "%d,%u,%s,%s,%u\n", (int)one->pid, k, p->uuid, p->name, p->sm_count);
        }
    }
    return true;
}

/* Quit: servers end when their clients have ended; `-t`: by force after so many seconds. */
static bool daemon_quit(struct call *c)
{
    unsigned long seconds = 0;
    bool timed = c->count == 2 && strcmp(c->word[0], "-t") == 0 && number_parse(c->word[1], 86400, &seconds);
    if (c->count && !timed) {
        fprintf(c->out, "Usage: quit [-t <seconds>]\n");
        return true;
    }
    struct waiter w = {.fd = c->fd, .waits = WAITS_FOR_END};
    if (timed) w.until_ns = sim_now() + seconds * 1000000000ull;
    c->daemon->quitting = true;
    for (uint32_t i = 0; i < SERVERS_MAX; i++)
        c->daemon->server[i].leaving = true;
    return !waiter_add(c->daemon, &w);
}

static bool help_print(struct call *c);

static const struct {
    const char *name;
    int least, most; /* words after it */
    command run;
} commands[] = {
    {"get_server_list", 0, 0, get_server_list},
    {"get_server_status", 1, 1, get_server_status},
    {"start_server", 2, 2, start_server},
    {"shutdown_server", 1, 2, shutdown_server},
    {"get_client_list", 1, 1, get_client_list},
    {"get_device_client_list", 0, 1, get_device_client_list},
    {"set_default_active_thread_percentage", 1, 1, set_default_percentage},
    {"get_default_active_thread_percentage", 0, 0, get_default_percentage},
    {"set_active_thread_percentage", 2, 2, set_percentage},
    {"get_active_thread_percentage", 1, 1, get_percentage},
    {"set_default_device_pinned_mem_limit", 2, 2, set_default_limit},
    {"get_default_device_pinned_mem_limit", 1, 1, get_default_limit},
    {"set_device_pinned_mem_limit", 3, 3, set_limit},
    {"get_device_pinned_mem_limit", 2, 2, get_limit},
    {"terminate_client", 2, 2, terminate_client},
    {"ps", 0, 2, processes_list},
    {"set_default_client_priority", 1, 1, set_priority},
    {"get_default_client_priority", 0, 0, get_priority},
    {"device_query", 0, 2, device_query},
    {"quit", 0, 2, daemon_quit},
    {"help", 0, 0, help_print},
};

static bool help_print(struct call *c)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(c->out, "%s\n", commands[i].name);
    return true;
}

bool command_run(struct daemon *d, const char *line, int fd, FILE *out)
{
    char text[MESSAGE_BYTES];
    struct call c = {.daemon = d, .fd = fd, .out = out};
    char *state = NULL, *name;
    snprintf(text, sizeof text, "%s", line);
    name = strtok_r(text, " \t\r\n", &state);
    if (!name) return true;
    for (char *word; (word = strtok_r(NULL, " \t\r\n", &state)) != NULL;) {
        if (c.count == WORDS_MAX) break;
        c.word[c.count++] = word;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i].name, name) != 0) continue;
        if (c.count >= commands[i].least && c.count <= commands[i].most) return commands[i].run(&c);
        fprintf(out, "Invalid arguments to %s\n", name);
        return true;
    }
    fprintf(out, "Unknown command: %.64s\n", name);
    return true;
}
