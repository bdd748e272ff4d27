#include "remote/worker/children.h"

#include "remote/worker/control.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct child {
    pid_t pid;
    int control;              /* -1: its connection cannot be replaced */
    int program;              /* pidfd of the program that it serves; -1: unknown */
    int64_t program_ended_ms; /* when the end of the program was seen; 0: it was not */
    uint8_t session[CB_SESSION_BYTES];
} child[CB_SESSIONS_MAX];
static size_t child_count;

size_t cb_children_count(void)
{
    return child_count;
}

bool cb_children_add(pid_t pid, const uint8_t *session, int control, int program)
{
    if (child_count == CB_SESSIONS_MAX) return false;
    struct child *c = &child[child_count++];
    *c = (struct child){.pid = pid, .control = control, .program = program};
    if (session) memcpy(c->session, session, sizeof c->session);
    return true;
}

bool cb_children_are_ending(int64_t now_ms)
{
    bool some = false;
    for (size_t i = 0; i < child_count; i++) {
        struct child *c = &child[i];
        struct pollfd program = {c->program, POLLIN, 0};
        if (!c->program_ended_ms && c->program >= 0 && poll(&program, 1, 0) > 0) c->program_ended_ms = now_ms;
        some = some || (c->program_ended_ms && now_ms - c->program_ended_ms < CB_ENDING_MS);
    }
    return some;
}

enum cb_handing cb_children_hand_over(const struct cb_connecting *guest)
{
    for (size_t i = 0; i < child_count; i++) {
        const struct child *c = &child[i];
        if (c->control < 0 || memcmp(c->session, guest->greeting.session, sizeof c->session) != 0) continue;
        return cb_control_send(c->control, guest) ? CB_HANDED : CB_NOT_TAKEN;
    }
    return CB_UNKNOWN_SESSION;
}

static void child_close(const struct child *c)
{
    if (c->control >= 0) close(c->control);
    if (c->program >= 0) close(c->program);
}

static void child_report_end(const struct child *c, int status)
{
    if (WIFSIGNALED(status))
        fprintf(stderr, "worker %ld: ended by signal %d\n", (long)c->pid, WTERMSIG(status));
    else if (WEXITSTATUS(status))
        fprintf(stderr, "worker %ld: exit %d\n", (long)c->pid, WEXITSTATUS(status));
}

void cb_children_reap(void)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        for (size_t i = 0; i < child_count; i++) {
            if (child[i].pid != pid) continue;
            child_report_end(&child[i], status);
            child_close(&child[i]);
            child[i] = child[--child_count];
            break;
        }
    }
}

void cb_children_drop(void)
{
    for (size_t i = 0; i < child_count; i++)
        child_close(&child[i]);
    child_count = 0;
}

void cb_children_end(void)
{
    for (size_t i = 0; i < child_count; i++)
        kill(child[i].pid, SIGKILL);
    for (size_t i = 0; i < child_count; i++) {
        while (waitpid(child[i].pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    cb_children_drop();
}
