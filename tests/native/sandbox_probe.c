/*
 * Probe of the worker's sandbox: tries one operation after another and prints, for each, its name and its error
 * (0: it worked). The first argument is a file that exists, the second a name in a writable directory, the
 * third another process.
 */
#define _GNU_SOURCE
#include "remote/worker/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void told(const char *what, long result)
{
    printf("%s %d\n", what, result < 0 ? errno : 0);
    fflush(stdout);
}

#define TRY(name, call) (errno = 0, told(name, (long)(call)))

static void *run(void *argument)
{
    return argument;
}

static int thread(void)
{
    pthread_t made;
    int failed = pthread_create(&made, NULL, run, NULL);
    if (failed) return errno = failed, -1;
    return pthread_join(made, NULL);
}

static void others(pid_t stranger)
{
    char *none[] = {NULL};
    char byte = 0;
    struct {
        void *base;
        size_t bytes;
    } mine = {&byte, 1}, its = {(void *)0x400000, 1};
    TRY("execve", execve("/bin/true", none, none));
    TRY("execveat", syscall(SYS_execveat, AT_FDCWD, "/bin/true", none, none, 0));
    TRY("fork", syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    TRY("clone3", syscall(SYS_clone3, NULL, 0));
    TRY("ptrace", syscall(SYS_ptrace, 16 /* attach */, stranger, 0, 0));
    TRY("process_vm_readv", syscall(SYS_process_vm_readv, stranger, &mine, 1, &its, 1, 0));
    TRY("process_vm_writev", syscall(SYS_process_vm_writev, stranger, &mine, 1, &its, 1, 0));
    TRY("kill", kill(stranger, SIGTERM));
    TRY("tgkill", syscall(SYS_tgkill, stranger, stranger, SIGTERM));
    TRY("pidfd_getfd", syscall(438, 0, 0, 0));
    TRY("setuid", setuid(getuid()));
}

static void rights(void)
{
    TRY("unshare", unshare(CLONE_NEWUSER));
    TRY("setns", setns(0, 0));
    TRY("namespace", syscall(SYS_clone, CLONE_NEWUSER | CLONE_THREAD | CLONE_VM | CLONE_SIGHAND, 0, 0, 0, 0));
    TRY("mount", syscall(SYS_mount, "none", "/", "tmpfs", 0, NULL));
    TRY("pivot_root", syscall(SYS_pivot_root, ".", "."));
    TRY("chroot", chroot("/"));
    TRY("keyctl", syscall(SYS_keyctl, 0, -3, 1));
    TRY("bpf", syscall(SYS_bpf, 0, NULL, 0));
    TRY("perf_event_open", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    TRY("init_module", syscall(SYS_init_module, NULL, 0, ""));
    TRY("io_uring_setup", syscall(425, 1, NULL));
    TRY("userfaultfd", syscall(SYS_userfaultfd, 0));
    TRY("newest call", syscall(470));
}

static void machines(int left_open)
{
    int pair[2];
    TRY("socket inet", socket(AF_INET, SOCK_STREAM, 0));
    TRY("socket unix", socket(AF_UNIX, SOCK_STREAM, 0));
    TRY("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    TRY("connect", connect(left_open, NULL, 0));
    TRY("accept", accept(left_open, NULL, NULL));
}

static void files(const char *present, const char *made)
{
    TRY("open to create", open(made, O_RDWR | O_CREAT, 0600));
    TRY("open to empty", open(present, O_WRONLY | O_TRUNC));
    TRY("open nameless", open("/tmp", O_RDWR | O_TMPFILE, 0600));
    TRY("openat2", syscall(437, AT_FDCWD, present, NULL, 0));
    TRY("mkdir", mkdir(made, 0700));
    TRY("unlink", unlink(present));
    TRY("rename", rename(present, made));
    TRY("link", link(present, made));
    TRY("symlink", symlink(present, made));
    TRY("chmod", chmod(present, 0777));
    TRY("truncate", truncate(present, 0));
}

static void what_is_left(const char *present)
{
    struct rlimit cores;
    TRY("may open to read", open(present, O_RDONLY));
    TRY("may open a device", open("/dev/null", O_RDWR));
    TRY("may start threads", thread());
    TRY("may map memory", mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0);
    TRY("may share memory", memfd_create("arena", MFD_CLOEXEC));
    TRY("may signal itself", kill(getpid(), 0));
    TRY("may ask who lives", kill(getppid(), 0));
    TRY("dumpable", prctl(PR_GET_DUMPABLE) == 0 ? 0 : (errno = EBADMSG, -1));
    TRY("cores", getrlimit(RLIMIT_CORE, &cores) == 0 && cores.rlim_max == 0 ? 0 : (errno = EBADMSG, -1));
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    int left_open = socket(AF_INET, SOCK_STREAM, 0);
    if (left_open < 0 || !cb_sandbox_enter()) return 1;
    others((pid_t)atoi(argv[3]));
    rights();
    machines(left_open);
    files(argv[1], argv[2]);
    what_is_left(argv[1]);
    return 0;
}
