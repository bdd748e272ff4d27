/*
 * calabash-enclose OPTION... -- PROGRAM ARGUMENT...: execute PROGRAM with restricted access to the machine.
 *
 *   --go FD            first wait for a byte on this descriptor; exit if it ends without one
 *   --root DIRECTORY   use a private root built there: only the paths of --see and --write, and no network
 *   --see PATH         make this file or directory visible, read-only; a missing one is left out
 *   --write PATH       make this file or directory visible, writable
 *   --user UID         run as this user and the group of the same number, without other groups or
 *   capabilities
 *
 * PROGRAM gets the variables that begin with PROGRAM_ here, without that prefix, and no others. They are not
 * passed as arguments because every user of the machine can read those.
 *
 * If the kernel permits no private root, PROGRAM runs in the machine's root, after a message. Every other
 * failure ends the program.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VISIBLE_MAX 64
#define SET_MAX     32
#define HANDED_ON   "PROGRAM_"

struct visible {
    const char *path;
    bool writable;
};

static struct {
    int go;
    long user;
    const char *root;
    struct visible visible[VISIBLE_MAX];
    int visible_count;
    char *set[SET_MAX + 1];
    int set_count;
    char **program;
} asked = {.go = -1, .user = -1};

static _Noreturn void exit_with_error(const char *what, const char *which)
{
    fprintf(stderr, "enclose: %s %s: %s\n", what, which, strerror(errno));
    exit(125);
}

static _Noreturn void exit_with_usage(void)
{
    fprintf(stderr,
            "usage: calabash-enclose [--go FD] [--root DIRECTORY] [--see PATH] [--write PATH] [--user UID]"
            " -- PROGRAM [ARGUMENT]\n");
    exit(2);
}

static long number_parse(const char *text)
{
    char *end = NULL;
    long found = strtol(text, &end, 10);
    if (!*text || *end || found < 0 || found > INT_MAX) exit_with_usage();
    return found;
}

static void visible_add(const char *path, bool writable)
{
    if (asked.visible_count == VISIBLE_MAX || path[0] != '/') exit_with_usage();
    asked.visible[asked.visible_count++] = (struct visible){path, writable};
}

static void options_read(int argc, char **argv)
{
    int at = 1;
    for (; at < argc && strcmp(argv[at], "--") != 0; at += 2) {
        const char *option = argv[at];
        if (at + 1 >= argc) exit_with_usage();
        char *value = argv[at + 1];
        if (strcmp(option, "--go") == 0) {
            asked.go = (int)number_parse(value);
        } else if (strcmp(option, "--user") == 0) {
            asked.user = number_parse(value);
        } else if (strcmp(option, "--root") == 0) {
            asked.root = value;
        } else if (strcmp(option, "--see") == 0 || strcmp(option, "--write") == 0) {
            visible_add(value, strcmp(option, "--write") == 0);
        } else {
            exit_with_usage();
        }
    }
    if (at + 1 >= argc) exit_with_usage();
    asked.program = argv + at + 1;
}

static void variables_take(void)
{
    for (char **variable = environ; *variable; variable++) {
        if (strncmp(*variable, HANDED_ON, strlen(HANDED_ON)) != 0) continue;
        if (asked.set_count == SET_MAX) exit_with_usage();
        asked.set[asked.set_count++] = *variable + strlen(HANDED_ON);
    }
}

static void go_wait(void)
{
    char byte;
    ssize_t got;
    do {
        got = read(asked.go, &byte, 1);
    } while (got < 0 && errno == EINTR);
    if (got != 1) exit(0); /* the starting process has given up */
    close(asked.go);
}

/* ---- private root ---- */

static void path_in_root(char path[PATH_MAX], const char *of)
{
    if (snprintf(path, PATH_MAX, "%s%s", asked.root, of) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        exit_with_error("cannot show", of);
    }
}

static void parents_make(const char *of)
{
    char path[PATH_MAX];
    path_in_root(path, of);
    for (char *slash = strchr(path + strlen(asked.root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0755) != 0 && errno != EEXIST) exit_with_error("cannot make", path);
        *slash = '/';
    }
}

/* Recreate a symbolic link, as /lib is on many machines. */
static void link_recreate(const char *of)
{
    char path[PATH_MAX], to[PATH_MAX];
    ssize_t length = readlink(of, to, sizeof to - 1);
    if (length < 0) exit_with_error("cannot read", of);
    to[length] = 0;
    path_in_root(path, of);
    if (symlink(to, path) != 0 && errno != EEXIST) exit_with_error("cannot show", of);
}

static void path_show(const struct visible *v)
{
    char path[PATH_MAX];
    struct stat status;
    if (lstat(v->path, &status) != 0) return;
    parents_make(v->path);
    if (S_ISLNK(status.st_mode)) {
        link_recreate(v->path);
        return;
    }
    path_in_root(path, v->path);
    if (S_ISDIR(status.st_mode)) {
        if (mkdir(path, 0755) != 0 && errno != EEXIST) exit_with_error("cannot make", path);
    } else {
        int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0 && errno != EACCES && errno != EROFS && errno != ENXIO)
            exit_with_error("cannot make", path);
        if (fd >= 0) close(fd);
    }
    if (mount(v->path, path, NULL, MS_BIND, NULL) != 0) exit_with_error("cannot show", v->path);
    unsigned long flags = MS_BIND | MS_REMOUNT | MS_NOSUID | (v->writable ? 0 : MS_RDONLY);
    if (mount(NULL, path, NULL, flags, NULL) != 0) exit_with_error("cannot protect", v->path);
}

static void root_enter(void)
{
    if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) != 0) {
        if (errno != EPERM && errno != ENOSYS && errno != EINVAL)
            exit_with_error("cannot have", "namespaces");
        fprintf(stderr,
                "enclose: the kernel permits no namespaces here: the worker sees the machine's files\n");
        return;
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        exit_with_error("cannot part from", "the machine's mounts");
    if (mount("calabash", asked.root, "tmpfs", MS_NOSUID | MS_NODEV, "size=256k,nr_inodes=1k,mode=755") != 0)
        exit_with_error("cannot make a root in", asked.root);
    for (int i = 0; i < asked.visible_count; i++)
        path_show(&asked.visible[i]);
    if (chdir(asked.root) != 0 || syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 ||
        chdir("/") != 0)
        exit_with_error("cannot enter", asked.root);
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV,
              "size=256k,nr_inodes=1k,mode=755") != 0)
        exit_with_error("cannot protect", "the root");
}

/* ---- user ---- */

static void resource_limit_set(int what, rlim_t most)
{
    struct rlimit now;
    if (getrlimit(what, &now) != 0) return;
    if (now.rlim_max < most) most = now.rlim_max;
    now.rlim_cur = now.rlim_max = most;
    if (setrlimit(what, &now) != 0) exit_with_error("cannot set", "limits");
}

static void user_become(void)
{
    uid_t uid = (uid_t)asked.user;
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        prctl(PR_CAPBSET_DROP, capability);
    resource_limit_set(RLIMIT_NPROC, 4096); /* this user ID is used by this program only */
    if (setgroups(0, NULL) != 0 || setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0)
        exit_with_error("cannot become", "another user");
    if (setuid(0) == 0) {
        errno = EPERM;
        exit_with_error("is still", "root");
    }
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    variables_take();
    if (asked.go >= 0) go_wait();
    umask(022);
    resource_limit_set(RLIMIT_CORE, 0);
    resource_limit_set(RLIMIT_NOFILE, 16384);
    if (asked.root) root_enter();
    if (asked.user >= 0) user_become();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) exit_with_error("cannot give up", "privileges");
    umask(077);
    signal(SIGPIPE, SIG_IGN);
    execve(asked.program[0], asked.program, asked.set);
    exit_with_error("cannot start", asked.program[0]);
}
