/* The first process of every pod of the tests: waits until it is told to go and reaps what others leave. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void) {
    sigset_t heard;
    int number = 0;
    sigemptyset(&heard);
    sigaddset(&heard, SIGINT);
    sigaddset(&heard, SIGTERM);
    sigaddset(&heard, SIGCHLD);
    sigprocmask(SIG_BLOCK, &heard, NULL);
    while (sigwait(&heard, &number) == 0 && number == SIGCHLD) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
    return 0;
}
